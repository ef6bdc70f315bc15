r"""Short algebra and number theory problems in LaTeX, after the form of MATH-500.

Each problem has a `problem`, a `solution` of one to three sentences that ends with the result in `\boxed{...}`, and the
`answer`, which is the content of that box: an integer, a fraction in lowest terms or a short expression. The numbers are
small and every step of the working is a single operation.
"""

import math
import random

from pocket.problems import Content, Fields, templates

LETTERS = ("x", "x", "y", "n", "t")
ORDINALS = {3: "third", 4: "fourth", 5: "fifth", 6: "sixth"}
GROUPS = ("club", "team", "class", "group")
COPRIME = tuple((p, q) for q in range(2, 13) for p in range(1, q) if math.gcd(p, q) == 1)
LCM_PAIRS = tuple((a, b) for b in range(4, 91) for a in range(3, min(b, 16)) if 2 <= math.lcm(a, b) // b <= 6)
PRIME_PAIRS = tuple((p, q) for q in (3, 5, 7, 11, 13) for p in (2, 3, 5, 7, 11) if p < q)
PRIMES = tuple(n for n in range(2, 110) if all(n % d for d in range(2, n)))
GEOMETRIC = ((2, 4), (2, 5), (2, 6), (3, 3), (3, 4), (4, 3), (5, 3), (10, 3), (10, 4))
FRACTION_PAIRS = tuple(
    (a, p, b, q)
    for q in range(3, 10)
    for p in range(2, q)
    if math.gcd(p, q) == 1
    for a in range(1, p)
    if math.gcd(a, p) == 1
    for b in range(1, q)
    if math.gcd(b, q) == 1
)
SPREADS = tuple((a, -a - c, c) for a in range(-8, 0) for c in range(1, 9) if a < -a - c < c)
ROOT_PAIRS = tuple((r, s) for s in range(-10, 12) for r in range(-11, s) if r and s and r != -s)
NONZERO = tuple(n for n in range(-9, 10) if n)
BINOMIALS = tuple(
    (c, a, b) for c in (1, 2) for a in NONZERO for b in NONZERO if (c > 1 or a <= b) and c * b + a not in (0, 1, -1)
)
NUMERALS = tuple(
    (base, digits)
    for base, lengths in ((2, (3, 4)), *((b, (2, 3)) for b in (3, 4, 5)), *((b, (2,)) for b in (6, 7, 8, 9)))
    for length in lengths
    for digits in (tuple(n // base**i % base for i in reversed(range(length))) for n in range(base**length))
    if digits[0]
)
RELATIONS = (">", "<", r"\ge", r"\le")


class Style:
    """One way of writing a problem: its math delimiters, its product sign and its choices of words."""

    def __init__(self, wording: random.Random) -> None:
        self.wording = wording
        self.left, self.right = wording.choice((("$", "$"), (r"\(", r"\)")))
        self.dot = wording.choice((r"\cdot", r"\times"))

    def pick(self, *options: str) -> str:
        return self.wording.choice(options)

    def swap(self, a: int, b: int) -> tuple[int, int]:
        return self.wording.choice(((a, b), (b, a)))

    def m(self, text: object) -> str:
        return f"{self.left}{text}{self.right}"

    def times(self, *factors: object) -> str:
        return f" {self.dot} ".join(str(factor) for factor in factors)

    def find(self, noun: str) -> str:
        return self.pick(f"What is {noun}?", f"Find {noun}.", f"Compute {noun}.", f"Determine {noun}.")

    def so(self) -> str:
        return self.pick("So", "Therefore", "Thus", "Hence", "Then")

    def move(self, verb: str, gerund: str, rest: str, result: str) -> str:
        """A sentence such as `Add 3 to get ...`, `Adding 3 gives ...`."""
        return self.pick(
            f"{verb.capitalize()} {rest} to get {result}.",
            f"{gerund.capitalize()} {rest} gives {result}.",
            f"We {verb} {rest}: {result}.",
        )

    def end(self, result: str, name: str = "the answer") -> str:
        """The last sentence: `result` is the boxed formula."""
        return f"{self.so()} {name} is {self.m(result)}."

    def product(self, a: int, b: int) -> list[str]:
        """The steps of `a * b` for a small `a`: the tens of `b` separately from its ones."""
        tens, ones = b // 10 * 10, b % 10
        if b <= 12 or not ones or a in (1, 10):
            return []
        return [f"{self.times(a, tens)} + {self.times(a, ones)}", f"{a * tens} + {a * ones}"]


def boxed(answer: object) -> str:
    return rf"\boxed{{{answer}}}"


def fields(problem: str, solution: str, answer: object) -> Fields:
    return {"problem": problem, "solution": solution, "answer": str(answer)}


def signed(n: int, unit: str = "") -> str:
    """A term after the first: `+ 5x`, `- x`."""
    size = str(abs(n)) if abs(n) != 1 or not unit else ""
    return f"{'-' if n < 0 else '+'} {size}{unit}"


def lead(n: int, unit: str) -> str:
    return unit if n == 1 else f"{n}{unit}"


def frac(a: object, b: object) -> str:
    return rf"\frac{{{a}}}{{{b}}}"


def clear_constant(s: Style, b: int, result: str) -> str:
    """The step that removes the constant `b` from the left side."""
    verb, gerund = ("subtract", "subtracting") if b > 0 else ("add", "adding")
    ending = (" from" if b > 0 else " to") + " both sides"
    return s.move(verb, gerund, s.m(abs(b)) + s.pick("", ending), s.m(result))


def linear_equation(content: Content, s: Style) -> Fields:
    x = s.pick(*LETTERS)
    a, value, b = content.int(2, 9), content.int(1, 12), content.int(1, 20) * content.choice((1, -1))
    equation, v = s.m(f"{a}{x} {signed(b)} = {a * value + b}"), s.m(x)
    problem = s.pick(f"Solve for {v}: {equation}.", f"If {equation}, what is {v}?", f"Find {v} such that {equation}.")
    result = s.m(f"{x} = {boxed(value)}")
    last = s.pick(f"{s.so()} {result}.", f"Divide by {s.m(a)}: {result}.", f"Dividing by {s.m(a)} gives {result}.")
    return fields(problem, f"{clear_constant(s, b, f'{a}{x} = {a * value}')} {last}", value)


def sum_and_difference(content: Content, s: Style) -> Fields:
    y, gap, asked = content.int(1, 20), content.int(1, 20), content.choice(("x", "y"))
    x = y + gap
    first, second = s.m(f"x + y = {x + y}"), s.m(f"x - y = {gap}")
    problem = s.pick(
        f"If {first} and {second}, what is {s.m(asked)}?",
        f"Let {first} and {second}. Find {s.m(asked)}.",
        f"Solve {first}, {second} for {s.m(asked)}.",
    )
    verb, gerund, sign, value = ("add", "adding", "+", x) if asked == "x" else ("subtract", "subtracting", "-", y)
    step = s.move(
        verb,
        gerund,
        s.pick("the equations", "the two equations"),
        s.m(f"2{asked} = {x + y} {sign} {gap} = {2 * value}"),
    )
    return fields(problem, f"{step} {s.so()} {s.m(f'{asked} = {boxed(value)}')}.", value)


def polynomial_value(content: Content, s: Style) -> Fields:
    b, c, n = content.int(2, 9), content.int(1, 20), content.int(2, 9)
    f = s.pick("f", "f", "p", "g")
    rule = s.m(f"{f}(x) = x^2 + {b}x + {c}")
    problem = (
        s.pick(f"If {rule}, what is ", f"Let {rule}. What is ", f"Given {rule}, what is ") + s.m(f"{f}({n})") + "?"
    )
    chain = f"{n}^2 + {s.times(b, n)} + {c} = {n * n} + {b * n} + {c} = {n * n + b * n} + {c}"
    answer = n * n + b * n + c
    start = s.pick("We have", "We compute", f"Put {s.m(f'x = {n}')}:", f"Substitute {s.m(f'x = {n}')}:")
    return fields(problem, f"{start} {s.m(f'{f}({n}) = {chain} = {boxed(answer)}')}.", answer)


def greatest_common_divisor(content: Content, s: Style) -> Fields:
    g, (p, q) = content.int(2, 11), content.choice(COPRIME)
    a, b = s.swap(g * p, g * q)
    noun = s.pick("the greatest common divisor", "the greatest common factor", "the GCD")
    problem = s.find(s.pick(f"{noun} of {s.m(a)} and {s.m(b)}", s.m(rf"\gcd({a}, {b})")))
    big, small, steps = max(a, b), min(a, b), []
    while small:
        steps.append(rf"\gcd({big}, {small})")
        big, small = small, big % small
    chain = s.m(" = ".join([*steps, rf"\gcd({g}, 0)"]))
    start = s.pick("By the Euclidean algorithm,", "We have", "Taking remainders,")
    return fields(problem, f"{start} {chain}. {s.end(boxed(g))}", g)


def least_common_multiple(content: Content, s: Style) -> Fields:
    pair = content.choice(LCM_PAIRS)
    (small, big), (a, b) = pair, s.swap(*pair)
    answer = math.lcm(small, big)
    noun = s.pick("the least common multiple", "the smallest common multiple", "the LCM")
    problem = s.find(f"{noun} of {s.m(a)} and {s.m(b)}")
    multiples = s.m(", ".join(str(n) for n in range(big, answer + 1, big)))
    listing = s.pick(f"List multiples of {s.m(big)}:", f"The multiples of {s.m(big)} are", f"Multiples of {s.m(big)}:")
    first = s.pick("The first one divisible by", "The first that is a multiple of")
    return fields(problem, f"{listing} {multiples}. {first} {s.m(small)} is {s.m(boxed(answer))}.", answer)


def remainder(content: Content, s: Style) -> Fields:
    d, q = content.int(3, 12), content.int(2, 12)
    r = content.int(1, d - 1)
    n = d * q + r
    problem = s.pick(
        f"What is the remainder when {s.m(n)} is divided by {s.m(d)}?",
        f"Find the remainder when {s.m(n)} is divided by {s.m(d)}.",
        f"{s.m(n)} is divided by {s.m(d)}. What is the remainder?",
    )
    fact = s.m(f"{s.times(d, q)} = {d * q}")
    start = s.pick(f"We have {fact}.", f"Note that {fact}.", f"The closest multiple below is {fact}.")
    return fields(problem, f"{start} {s.end(f'{n} - {d * q} = {boxed(r)}', 'the remainder')}", r)


def count_divisors(content: Content, s: Style) -> Fields:
    (p, q), a, b = content.choice(PRIME_PAIRS), content.int(1, 6), content.int(1, 6)
    number = s.m(s.times(*(str(base) if e == 1 else f"{base}^{e}" for base, e in ((p, a), (q, b)))))
    kind = s.pick("divisors", "factors")
    problem = s.pick(
        f"How many positive {kind} does {number} have?", f"Find the number of positive {kind} of {number}."
    )
    start = s.pick("The exponents are", "Here the exponents are", "Its exponents are")
    counted = f"({a} + 1)({b} + 1) = {s.times(a + 1, b + 1)} = {boxed((a + 1) * (b + 1))}"
    return fields(problem, f"{start} {s.m(a)} and {s.m(b)}. {s.end(counted, 'the number')}", (a + 1) * (b + 1))


def modular_product(content: Content, s: Style) -> Fields:
    low, gap, mod = content.int(11, 40), content.int(1, 15), content.int(3, 9)
    a, b = s.swap(low, low + gap)
    r, t, answer = a % mod, b % mod, a * b % mod
    product = s.m(s.times(a, b))
    problem = s.pick(
        f"What is the remainder when {product} is divided by {s.m(mod)}?",
        f"Find the remainder when {product} is divided by {s.m(mod)}.",
        f"What is {product} modulo {s.m(mod)}?",
    )
    start = s.pick(f"Modulo {s.m(mod)},", f"Working modulo {s.m(mod)},")
    reduced = s.m(rf"{a} \equiv {r}") + " and " + s.m(rf"{b} \equiv {t}")
    chain = rf"{s.times(r, t)} = {r * t} \equiv {boxed(answer)}"
    return fields(problem, f"{start} {reduced}. {s.so()} {s.pick('the product is', 'we get')} {s.m(chain)}.", answer)


def arithmetic_sequence(content: Content, s: Style) -> Fields:
    a, d, n = content.int(1, 20), content.int(2, 9), content.int(7, 12)
    terms = s.m(rf"{a}, {a + d}, {a + 2 * d}, \ldots")
    asked = f"{n}th term"
    problem = s.pick(
        f"What is the {asked} of the arithmetic sequence {terms}?",
        f"Find the {asked} of the arithmetic sequence {terms}.",
        f"An arithmetic sequence begins {terms}. What is the {asked}?",
    )
    start = f"The {s.pick('common difference', 'difference')} is {s.m(f'{a + d} - {a} = {d}')}."
    answer = a + (n - 1) * d
    chain = f"{a} + {s.times(n - 1, d)} = {a} + {(n - 1) * d} = {boxed(answer)}"
    return fields(problem, f"{start} {s.end(chain, s.pick('the answer', f'the {asked}'))}", answer)


def geometric_sequence(content: Content, s: Style) -> Fields:
    a, (r, n), up = content.int(2, 25), content.choice(GEOMETRIC), content.choice((True, False))
    terms = [a * r**i for i in range(n)]
    terms, ratio = (terms, str(r)) if up else (terms[::-1], frac(1, r))
    first, ratio = s.m(terms[0]), s.m(ratio)
    problem = s.pick(
        f"A geometric sequence has first term {first} and ratio {ratio}. What is the {ORDINALS[n]} term?",
        f"Find the {ORDINALS[n]} term of the geometric sequence with first term {first} and ratio {ratio}.",
    )
    act = f"{'Multiply' if up else 'Divide'} by {s.m(r)} each time:"
    start = s.pick("The terms are", "The sequence is", act)
    end = s.end(boxed(terms[-1]), s.pick("the answer", f"the {ORDINALS[n]} term"))
    return fields(problem, f"{start} {s.m(', '.join(map(str, terms)))}. {end}", terms[-1])


def lowest_terms(content: Content, s: Style) -> Fields:
    g, (p, q) = content.int(2, 11), content.choice(COPRIME)
    fraction, answer = s.m(frac(g * p, g * q)), frac(p, q)
    problem = s.pick(
        f"Simplify {fraction}.",
        f"Write {fraction} in lowest terms.",
        f"Express {fraction} as a fraction in lowest terms.",
    )
    start = s.pick(
        f"Both numbers are divisible by {s.m(g)}.",
        f"The greatest common divisor is {s.m(g)}.",
        f"Divide top and bottom by {s.m(g)}.",
    )
    parts = s.m(f"{g * p} = {s.times(g, p)}") + " and " + s.m(f"{g * q} = {s.times(g, q)}")
    return fields(problem, f"{start} {s.pick('We have', 'Here')} {parts}. {s.end(boxed(answer))}", answer)


def fraction_sum(content: Content, s: Style) -> Fields:
    (a, p, b, q), minus = content.choice(FRACTION_PAIRS), content.choice((True, False))
    if a * q < b * p if minus else s.wording.random() < 0.5:
        a, p, b, q = b, q, a, p
    sign = "-" if minus else "+"
    answer = frac(a * q - b * p if minus else a * q + b * p, p * q)
    problem = s.pick("Compute {}.", "What is {}?", "Write {} as a single fraction.", "Evaluate {}.").format(
        s.m(f"{frac(a, p)} {sign} {frac(b, q)}")
    )
    start = s.pick("A common denominator is", "The common denominator is", "Use the denominator")
    chain = f"{frac(a * q, p * q)} {sign} {frac(b * p, p * q)} = {boxed(answer)}"
    return fields(problem, f"{start} {s.m(f'{s.times(p, q)} = {p * q}')}. {s.so()} we get {s.m(chain)}.", answer)


def average(content: Content, s: Style) -> Fields:
    mean, spread = content.int(9, 32), content.choice(SPREADS)
    a, b, c = s.wording.sample([mean + d for d in spread], 3)
    numbers = f"{s.m(a)}, {s.m(b)} and {s.m(c)}"
    problem = s.find(f"the {s.pick('average', 'mean')} of {numbers}")
    start = s.pick("The sum is", "Their sum is", "The numbers add up to")
    adding = s.m(f"{a} + {b} + {c} = {a + b} + {c} = {3 * mean}")
    return fields(
        problem,
        f"{start} {adding}. {s.end(f'{frac(3 * mean, 3)} = {boxed(mean)}', s.pick('the average', 'the mean'))}",
        mean,
    )


def absolute_value(content: Content, s: Style) -> Fields:
    a, b, larger = content.int(1, 20), content.int(1, 20), content.choice((True, False))
    which = s.pick("larger", "greater") if larger else s.pick("smaller", "lesser")
    problem = s.find(f"the {which} {s.pick('solution of', 'solution to')} {s.m(f'|x - {a}| = {b}')}")
    cases = f"{s.m(f'x - {a} = {b}')} or {s.m(f'x - {a} = -{b}')}"
    answer = a + b if larger else a - b
    start = f"{s.pick('Either', 'This means', 'We have')} {cases}."
    return fields(
        problem, f"{start} The {which} is {s.m(f'x = {a} {signed(b if larger else -b)} = {boxed(answer)}')}.", answer
    )


def exponents(content: Content, s: Style) -> Fields:
    x = s.pick(*LETTERS)
    a, b, c = content.int(2, 9), content.int(2, 9), content.int(2, 9)
    expression = s.m(s.times(f"({x}^{a})^{b}", f"{x}^{c}"))
    problem = s.pick("Simplify {}.", "Write {} as a single power.", "Express {} as one power of the variable.").format(
        expression
    )
    answer = f"{x}^{{{a * b + c}}}"
    first = s.m(f"({x}^{a})^{b} = {x}^{{{a * b}}}")
    start = s.pick(f"We have {first}.", f"First, {first}.", f"Multiply exponents: {first}.")
    added = s.pick("Add exponents:", "Adding exponents,", f"{s.so()} we get")
    power = f"{x}^{{{a * b} + {c}}}"
    return fields(problem, f"{start} {added} {s.m(f'{power} = {boxed(answer)}')}.", answer)


def quadratic_root(content: Content, s: Style) -> Fields:
    (low, high), larger = content.choice(ROOT_PAIRS), content.choice((True, False))
    which = s.pick("larger", "greater") if larger else s.pick("smaller", "lesser")
    equation = s.m(f"x^2 {signed(-low - high, 'x')} {signed(low * high)} = 0")
    problem = s.find(f"the {which} {s.pick('root', 'solution')} of {equation}")
    factors = s.m(f"(x {signed(-low)})(x {signed(-high)}) = 0")
    start = s.pick(f"Factoring gives {factors}.", f"Factor: {factors}.", f"We can write {factors}.")
    roots = s.pick("The roots are", "The solutions are") + f" {s.m(low)} and {s.m(high)}."
    answer = high if larger else low
    return fields(problem, f"{start} {roots} The {which} is {s.m(boxed(answer))}.", answer)


def difference_of_squares(content: Content, s: Style) -> Fields:
    b, d = content.int(5, 50), content.int(1, 10)
    a, answer = b + d, d * (2 * b + d)
    problem = s.pick("Compute {}.", "What is {}?", "Evaluate {}.", "Find the value of {}.").format(
        s.m(f"{a}^2 - {b}^2")
    )
    chain = [f"({a} - {b})({a} + {b})", s.times(d, a + b), *s.product(d, a + b), boxed(answer)]
    start = s.pick("Factoring,", "We factor:", "As a difference of squares,", "This is")
    return fields(problem, f"{start} {s.m(' = '.join(chain))}.", answer)


def choose_two(content: Content, s: Style) -> Fields:
    group = s.pick(*GROUPS)
    rest, away = content.int(4, 15), content.int(2, 36)
    total, pairs = s.m(rest + away), rest * (rest - 1)
    gone = s.pick("are away", "are ill", "are busy")
    problem = (
        s.pick(
            f"A {group} has {total} members, but {s.m(away)} {gone}.", f"In a {group} of {total}, {s.m(away)} {gone}."
        )
        + " "
        + s.pick(
            "How many ways are there to choose two of the others?", "How many pairs can be formed from the others?"
        )
    )
    start = s.pick("There are", "This leaves", "We choose from") + f" {s.m(f'{rest + away} - {away} = {rest}')} people."
    chain = f"{frac(s.times(rest, rest - 1), 2)} = {frac(pairs, 2)} = {boxed(pairs // 2)}"
    return fields(problem, f"{start} {s.end(chain, 'the number of pairs')}", pairs // 2)


def units_digit(content: Content, s: Style) -> Fields:
    base, n = content.choice((2, 3, 4, 7, 8, 9)), content.int(5, 80)
    cycle = [base]
    while cycle[-1] * base % 10 != base:
        cycle.append(cycle[-1] * base % 10)
    size = len(cycle)
    answer, r = cycle[(n - 1) % size], n % size
    problem = s.find(f"the {s.pick('units digit', 'last digit', 'ones digit')} of {s.m(f'{base}^{{{n}}}')}")
    start = s.pick("The last digits repeat:", "The digits cycle through", "The last digits of the powers are")
    divided = s.m(f"{n} = {s.times(size, n // size)} + {r}")
    place = "last" if r == 0 else ("first", "second", "third")[r - 1]
    chosen = s.pick(f"Since {divided}, take the {place}:", f"As {divided}, we need the {place}:")
    return fields(problem, f"{start} {s.m(', '.join(map(str, cycle)))}. {chosen} {s.m(boxed(answer))}.", answer)


def digit_sum(content: Content, s: Style) -> Fields:
    n = content.int(100, 9999)
    digits = [int(c) for c in str(n)]
    problem = s.find(f"the {s.pick('sum of the digits of', 'digit sum of')} {s.m(n)}")
    chain = [" + ".join(map(str, [sum(digits[:i]), *digits[i:]])) for i in range(1, len(digits))]
    start = s.pick("The sum is", "Add the digits:", "Adding the digits, we get", "We have")
    return fields(problem, f"{start} {s.m(' = '.join([*chain, boxed(sum(digits))]))}.", sum(digits))


def percent(content: Content, s: Style) -> Fields:
    tens, k, kind = content.int(1, 9), content.int(2, 17), content.choice(("of", "up", "down"))
    n, part, share = 10 * k, tens * k, s.m(rf"{10 * tens}\%")
    if kind == "of":
        problem, answer = s.find(f"{share} of {s.m(n)}"), part
    else:
        verb = "increased" if kind == "up" else "decreased"
        answer = n + part if kind == "up" else n - part
        problem = s.pick(
            f"What is {s.m(n)} {verb} by {share}?", f"The number {s.m(n)} is {verb} by {share}. What is the result?"
        )
    ten = s.m(r"10\%")
    tenth = s.pick("Ten percent is", f"First, {ten} of {s.m(n)} is") + f" {s.m(k)}."
    if kind == "of":
        return fields(problem, f"{tenth} {s.end(f'{s.times(tens, k)} = {boxed(answer)}', share)}", answer)
    change = f"{s.so()} {share} is {s.m(f'{s.times(tens, k)} = {part}')}."
    last = f"{s.pick('The result is', 'This gives')} {s.m(f'{n} {signed(answer - n)} = {boxed(answer)}')}."
    return fields(problem, f"{tenth} {change} {last}", answer)


def composition(content: Content, s: Style) -> Fields:
    a, b, c, n = content.int(2, 6), content.int(1, 9), content.int(1, 6), content.int(1, 6)
    f, g = s.m(f"f(x) = {a}x + {b}"), s.m(f"g(x) = x + {c}")
    rules = s.pick(f"{f} and {g}", f"{g} and {f}")
    asked = s.m(f"f(g({n}))")
    problem = s.pick(f"Let {rules}. Find {asked}.", f"If {rules}, what is {asked}?", f"Given {rules}, compute {asked}.")
    inner, answer = n + c, a * (n + c) + b
    start = f"{s.pick('First,', 'We have', 'Here')} {s.m(f'g({n}) = {n} + {c} = {inner}')}."
    chain = s.m(f"f({inner}) = {s.times(a, inner)} + {b} = {a * inner} + {b} = {boxed(answer)}")
    return fields(problem, f"{start} {s.so()} {chain}.", answer)


def slope(content: Content, s: Style) -> Fields:
    x, y, dx = content.int(0, 9), content.int(0, 9), content.int(1, 9)
    m = content.choice((-5, -4, -3, -2, -1, 1, 2, 3, 4, 5))
    end_x, end_y = x + dx, y + m * dx
    points = f"{s.m(f'({x}, {y})')} and {s.m(f'({end_x}, {end_y})')}"
    problem = s.pick(
        s.find(f"the slope of the line through {points}"), f"A line passes through {points}. What is its slope?"
    )
    ratio = f"{frac(f'{end_y} - {y}', f'{end_x} - {x}')} = {frac(m * dx, dx)} = {boxed(m)}"
    return fields(problem, f"{s.pick('The slope is', 'We have slope', 'Its slope equals')} {s.m(ratio)}.", m)


def expand(content: Content, s: Style) -> Fields:
    c, a, b = content.choice(BINOMIALS)
    square, middle = lead(c, "x^2"), c * b + a
    product = s.m(f"({lead(c, 'x')} {signed(a)})(x {signed(b)})")
    problem = s.pick("Expand {}.", "Expand and simplify {}.", "Multiply out {}.", "Write {} in expanded form.").format(
        product
    )
    answer = f"{square} {signed(middle, 'x')} {signed(a * b)}".replace(" ", "")
    terms = s.m(f"{square} {signed(c * b, 'x')} {signed(a, 'x')} {signed(a * b)}")
    start = s.pick(f"The product is {terms}.", f"Multiplying gives {terms}.", f"We get {terms}.")
    return fields(
        problem,
        f"{start} {s.pick('Combine like terms:', 'This simplifies to', 'This is')} {s.m(boxed(answer))}.",
        answer,
    )


def inequality(content: Content, s: Style) -> Fields:
    a, bound, b = content.int(2, 9), content.int(1, 12), content.int(1, 12) * content.choice((1, -1))
    relation = content.choice(RELATIONS)
    left = s.m(f"{a}x {signed(b)} {relation} {a * bound + b}")
    problem = s.pick(
        f"Solve {left}.",
        f"Solve the inequality {left}.",
        f"For which {s.m('x')} is {left}?",
        f"Find all {s.m('x')} with {left}.",
    )
    answer = f"x {relation} {bound}" if "e" in relation else f"x{relation}{bound}"
    step = clear_constant(s, b, f"{a}x {relation} {a * bound}")
    divide = s.pick(f"Divide by {s.m(a)}:", f"Dividing by {s.m(a)} gives", f"{s.so()} we have")
    return fields(problem, f"{step} {divide} {s.m(boxed(answer))}.", answer)


def count_primes(content: Content, s: Style) -> Fields:
    low, width = content.int(1, 75), content.int(10, 20)
    primes = [p for p in PRIMES if low <= p <= low + width]
    limits = s.pick(f"from {s.m(low)} to {s.m(low + width)}", f"between {s.m(low)} and {s.m(low + width)}, inclusive")
    problem = s.pick(
        f"How many primes are there {limits}?",
        f"How many prime numbers are {limits}?",
        f"Find the number of primes {limits}.",
    )
    start = f"{s.pick('List the primes', 'List them', 'Listing the primes')}: {s.m(', '.join(map(str, primes)))}."
    return fields(
        problem, f"{start} {s.end(boxed(len(primes)), s.pick('the number', 'the count', 'the answer'))}", len(primes)
    )


def base_ten(content: Content, s: Style) -> Fields:
    base, digits = content.choice(NUMERALS)
    places = [base**i for i in reversed(range(len(digits)))]
    parts = [d * p for d, p in zip(digits, places, strict=True)]
    numeral, answer = f"{''.join(map(str, digits))}_{base}", sum(parts)
    problem = s.pick("Convert {} to base 10.", "Write {} in base 10.", "What is {} in base 10?").format(s.m(numeral))
    products = [s.times(d, p) for d, p in zip(digits[:-1], places[:-1], strict=True)]
    chain = [numeral, " + ".join([*products, str(digits[-1])]), " + ".join(map(str, parts)), boxed(answer)]
    start = s.pick("We have", "By place value,", "Expanding,")
    return fields(problem, f"{start} {s.m(' = '.join(chain))}.", answer)


def consecutive_sum(content: Content, s: Style) -> Fields:
    pairs, first = content.int(3, 10), content.int(1, 52)
    last = first + 2 * pairs - 1
    total, answer = first + last, pairs * (first + last)
    problem = s.pick(
        s.find(f"the sum of the integers from {s.m(first)} to {s.m(last)}"),
        s.find(s.m(rf"{first} + {first + 1} + \cdots + {last}")),
    )
    count = s.pick("There are {} pairs", "We can form {} pairs", "The numbers form {} pairs").format(s.m(pairs))
    each = s.pick("each with sum", "each adding to") + " " + s.m(f"{first} + {last} = {total}")
    chain = [s.times(pairs, total), *s.product(pairs, total), boxed(answer)]
    return fields(problem, f"{count}, {each}. {s.end(' = '.join(chain), 'the sum')}", answer)


KINDS = (
    *(linear_equation, sum_and_difference, polynomial_value, greatest_common_divisor, least_common_multiple, remainder),
    *(count_divisors, modular_product, arithmetic_sequence, geometric_sequence, lowest_terms, fraction_sum, average),
    *(absolute_value, exponents, quadratic_root, difference_of_squares, choose_two, units_digit, digit_sum, percent),
    *(composition, slope, expand, inequality, count_primes, base_ten, consecutive_sum),
)
TEMPLATES = templates(Style, KINDS)
