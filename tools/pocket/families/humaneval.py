"""Problems in the form of HumanEval: a Python signature and a docstring, a body to write, and unit tests that score it.

The content of a problem is its operations and constants. Names, phrasing, coding style and the values in the example
and in the tests belong to the wording: a function of the test split never occurs in training, not even with another
example. Expected values come from reference functions here, never from running the text of a solution.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from pocket.problems import Content, Fields, Template, table


class Op(NamedTuple):
    """An operation with a constant: `name` for identifiers, `says` with {it} and {k}, `code` with {x} and {k}."""

    name: str
    says: tuple[str, ...]
    code: str
    apply: Callable[[int, int], int]

    def say(self, wording: random.Random, it: str, k: int) -> str:
        return wording.choice(self.says).format(it=it, k=k)

    def __repr__(self) -> str:  # part of a problem's content, so without the function's address
        return self.name


ADD = Op("add", ("add {k} to {it}", "increase {it} by {k}"), "{x} + {k}", lambda x, k: x + k)
SUBTRACT = Op("subtract", ("subtract {k} from {it}", "decrease {it} by {k}"), "{x} - {k}", lambda x, k: x - k)
MULTIPLY = Op("multiply", ("multiply {it} by {k}",), "{x} * {k}", lambda x, k: x * k)
MODULO = Op("modulo", ("take {it} modulo {k}",), "{x} % {k}", lambda x, k: x % k)
DIVIDE = Op("divide", ("divide {it} by {k}, rounding down",), "{x} // {k}", lambda x, k: x // k)
MINUS = Op("minus", ("subtract {it} from {k}",), "{k} - {x}", lambda x, k: k - x)
STEPS = (ADD, SUBTRACT, MULTIPLY)
OPS = (*STEPS, MODULO, DIVIDE, MINUS)

ABOVE = Op("above", ("above {k}", "greater than {k}", "larger than {k}"), "{x} > {k}", lambda x, k: x > k)
BELOW = Op("below", ("below {k}", "less than {k}", "smaller than {k}"), "{x} < {k}", lambda x, k: x < k)
AT_LEAST = Op("at_least", ("at least {k}",), "{x} >= {k}", lambda x, k: x >= k)
AT_MOST = Op("at_most", ("at most {k}",), "{x} <= {k}", lambda x, k: x <= k)
OTHER = Op("not", ("not equal to {k}", "different from {k}"), "{x} != {k}", lambda x, k: x != k)
DIVISIBLE = Op("divisible_by", ("divisible by {k}",), "{x} % {k} == 0", lambda x, k: x % k == 0)
ORDERS = (ABOVE, BELOW, AT_LEAST, AT_MOST)
CONDITIONS = (*ORDERS, OTHER, DIVISIBLE)

REDUCERS = {"sum": sum, "max": max, "min": min, "len": len}
REDUCED = {
    "sum": ("sum of {a}", "total of {a}"),
    "max": ("largest number in {a}", "maximum of {a}"),
    "min": ("smallest number in {a}", "minimum of {a}"),
    "len": ("length of {a}",),
}
UNITS = (
    *(("weeks", "days", 7), ("days", "hours", 24), ("hours", "minutes", 60), ("minutes", "seconds", 60)),
    *(("years", "months", 12), ("dozens", "eggs", 12), ("feet", "inches", 12), ("yards", "feet", 3)),
    *(("meters", "centimeters", 100), ("kilometers", "meters", 1000)),
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = table("apple banana cat dog egg fish green house jam kite lemon moon pear sun")
LISTS = ("numbers", "values", "nums")
ITEMS = ("x", "n", "v")
SCALARS = ("n", "x", "number", "value")
STRINGS = ("text", "s", "string")
RESULTS = ("result", "out")


def _fields(
    wording: random.Random,
    name: str,
    params: dict[str, str],
    returns: str,
    text: str,
    body: Sequence[str],
    reference: Callable[..., Any],
    cases: Sequence[tuple[Any, ...]],
) -> Fields:
    """The four fields; the first of `cases` (arguments of one call) is the example of the docstring, the rest tests."""
    hinted = wording.random() < 0.4
    signature = ", ".join(f"{param}: {kind}" if hinted else param for param, kind in params.items())
    arrow = f" -> {returns}" if hinted else ""
    text = text[0].upper() + text[1:] + "."
    calls = [", ".join(repr(value) for value in case) for case in cases]
    expected = [repr(reference(*case)) for case in cases]
    example = f"\n    >>> {name}({calls[0]})\n    {expected[0]}\n    " if wording.random() < 0.75 else ""
    tests = [f"    assert candidate({call}) == {value}\n" for call, value in zip(calls[1:], expected[1:], strict=True)]
    return {
        "prompt": f'def {name}({signature}){arrow}:\n    """{text}{example}"""\n',
        "canonical_solution": "".join(f"    {line}\n" for line in body),
        "test": "def check(candidate):\n" + "".join(tests),
        "entry_point": name,
    }


def _listing(wording: random.Random, code: str, x: str, source: str, condition: str = "") -> list[str]:
    """Lines that return `code` for every `x` of `source` that meets the condition, as a comprehension or a loop."""
    if wording.random() < 0.5:
        return [f"return [{code} for {x} in {source}{' if ' + condition if condition else ''}]"]
    out = wording.choice(RESULTS)
    inner = [f"    if {condition}:", f"        {out}.append({code})"] if condition else [f"    {out}.append({code})"]
    return [f"{out} = []", f"for {x} in {source}:", *inner, f"return {out}"]


def _summing(wording: random.Random, code: str, x: str, source: str, condition: str) -> list[str]:
    """Lines that return the sum of `code` over every `x` of `source` that meets the condition."""
    if wording.random() < 0.5:
        return [f"return sum({code} for {x} in {source} if {condition})"]
    total = "count" if code == "1" else "total"
    return [
        f"{total} = 0",
        f"for {x} in {source}:",
        f"    if {condition}:",
        f"        {total} += {code}",
        f"return {total}",
    ]


def _value(wording: random.Random, first: str, then: str = "{x}") -> list[str]:
    """Lines that return an expression, with or without a variable for its first step; `then` has {x} for that step."""
    if wording.random() < 0.5:
        return [f"return {then.format(x=first)}"]
    out = wording.choice(RESULTS)
    return [f"{out} = {first}", f"return {then.format(x=out)}"]


def _truth(wording: random.Random, condition: str) -> list[str]:
    if wording.random() < 0.6:
        return [f"return {condition}"]
    return [f"if {condition}:", "    return True", "return False"]


def _recursion(wording: random.Random, condition: str, start: int, step: str) -> list[str]:
    if wording.random() < 0.5:
        return [f"return {start} if {condition} else {step}"]
    return [f"if {condition}:", f"    return {start}", f"return {step}"]


def _lists(wording: random.Random, keep: Callable[[int], object] = lambda x: True) -> list[tuple[list[int]]]:
    """One short and four longer lists; the longer ones have numbers on both sides of where `keep` changes."""
    edges = [x for x in range(-120, 300) if bool(keep(x)) != bool(keep(x + 1))] or [10]
    edges = [x for x in edges if x >= 0] or edges
    near = edges[: wording.randint(1, 3)]
    short = [near[0], near[0] + 1, wording.randint(1, 60)]
    longer = [
        [y for x in wording.sample(near, 1) + [near[0]] for y in (x, x + 1)]
        + [wording.randint(1, 130) for _ in range(3)]
        for _ in range(4)
    ]
    for numbers in (short, *longer):
        wording.shuffle(numbers)
    return [(short,), *((numbers,) for numbers in longer)]


def _scalars(wording: random.Random, *edges: int) -> list[tuple[int]]:
    """A single number for the example, then two numbers at each edge (the edge and its successor) and another one."""
    values = [y for edge in edges for y in (edge, edge + 1)] + [wording.randint(1, 120)]
    return [(wording.choice((*values, wording.randint(1, 120))),), *((value,) for value in values)]


def _texts(wording: random.Random, letters: str) -> list[tuple[str]]:
    """Short words into which the given letters are mixed; the first is the shortest."""
    texts = []
    for _ in range(5):
        mixed = list(wording.choice(WORDS) + letters + wording.choice(letters))
        wording.shuffle(mixed)
        texts.append("".join(mixed))
    return [(text,) for text in sorted(texts, key=len)]


def _sentences(wording: random.Random, letter: str, k: int) -> list[tuple[str]]:
    """Word lists as text: words of lengths 1 to 9 that start with the letter (always at lengths near k) or not."""
    texts = []
    for count in (3, 9, 9, 9, 9):
        words = [
            ((letter if abs(size - k) < 2 else wording.choice((letter, "o"))) + "abcdefghij")[:size]
            for size in wording.sample(range(1, 10), count)
        ]
        texts.append(" ".join(words))
    return [(text,) for text in texts]


def filter_numbers(content: Content, wording: random.Random) -> Fields:
    condition, k = content.choice(CONDITIONS), content.int(2, 99)
    a, x = wording.choice(LISTS), wording.choice(ITEMS)
    said = condition.say(wording, "", k)
    text = wording.choice((f"return the {a} that are {said}", f"keep only the {a} that are {said}"))
    name = wording.choice(("filter_numbers", f"keep_{condition.name}", f"keep_{condition.name}_{k}"))
    body = _listing(wording, x, x, a, condition.code.format(x=x, k=k))
    cases = _lists(wording, lambda y: condition.apply(y, k))
    reference = lambda xs: [y for y in xs if condition.apply(y, k)]
    return _fields(wording, name, {a: "list[int]"}, "list[int]", text, body, reference, cases)


def map_numbers(content: Content, wording: random.Random) -> Fields:
    op, k = content.choice(OPS), content.int(2, 99)
    a, x = wording.choice(LISTS), wording.choice(ITEMS)
    each = wording.choice(("each number", "every number"))
    text = op.say(wording, f"{each} in {a}", k) + wording.choice(("", " and return the list"))
    name = wording.choice((f"{op.name}_all", f"{op.name}_{k}", "map_numbers"))
    body = _listing(wording, op.code.format(x=x, k=k), x, a)
    reference = lambda xs: [op.apply(y, k) for y in xs]
    cases = _lists(wording, lambda y: y >= k)
    return _fields(wording, name, {a: "list[int]"}, "list[int]", text, body, reference, cases)


def map_then_filter(content: Content, wording: random.Random) -> Fields:
    op, k = content.choice(STEPS), content.int(2, 20)
    condition, limit = content.choice(ORDERS), content.int(2, 99)
    a, x = wording.choice(LISTS), wording.choice(ITEMS)
    done = op.say(wording, wording.choice(("each number", "every number")) + f" in {a}", k)
    said = condition.say(wording, "", limit)
    text = done + wording.choice((f" and keep the results {said}", f", then keep results that are {said}"))
    name = wording.choice((f"{op.name}_and_filter", f"{op.name}_keep_{condition.name}", "map_filter"))
    code = op.code.format(x=x, k=k)
    if wording.random() < 0.5:
        body = [f"return [{code} for {x} in {a} if {condition.code.format(x=code, k=limit)}]"]
    else:
        out, test = wording.choice(RESULTS), condition.code.format(x="y", k=limit)
        body = [f"{out} = []", f"for {x} in {a}:", f"    y = {code}", f"    if {test}:", f"        {out}.append(y)"]
        body.append(f"return {out}")
    cases = _lists(wording, lambda y: condition.apply(op.apply(y, k), limit))
    reference = lambda xs: [op.apply(y, k) for y in xs if condition.apply(op.apply(y, k), limit)]
    return _fields(wording, name, {a: "list[int]"}, "list[int]", text, body, reference, cases)


def filter_then_map(content: Content, wording: random.Random) -> Fields:
    condition, limit = content.choice(CONDITIONS), content.int(2, 99)
    op, k = content.choice(STEPS), content.int(2, 20)
    a, x = wording.choice(LISTS), wording.choice(ITEMS)
    said = condition.say(wording, "", limit)
    done = op.say(wording, "each", k)
    text = wording.choice((f"keep the {a} that are {said} and {done}", f"take the {a} that are {said}, then {done}"))
    name = wording.choice((f"filter_and_{op.name}", f"{op.name}_if_{condition.name}", "filter_map"))
    body = _listing(wording, op.code.format(x=x, k=k), x, a, condition.code.format(x=x, k=limit))
    cases = _lists(wording, lambda y: condition.apply(y, limit))
    reference = lambda xs: [op.apply(y, k) for y in xs if condition.apply(y, limit)]
    return _fields(wording, name, {a: "list[int]"}, "list[int]", text, body, reference, cases)


def sum_filtered(content: Content, wording: random.Random) -> Fields:
    condition, k = content.choice(CONDITIONS), content.int(2, 99)
    a, x = wording.choice(LISTS), wording.choice(ITEMS)
    start = wording.choice(("return the sum of the", "add up the", "sum the"))
    text = f"{start} {a} that are {condition.say(wording, '', k)}"
    name = wording.choice((f"sum_{condition.name}", f"sum_{condition.name}_{k}", "sum_filtered"))
    body = _summing(wording, x, x, a, condition.code.format(x=x, k=k))
    cases = _lists(wording, lambda y: condition.apply(y, k))
    reference = lambda xs: sum(y for y in xs if condition.apply(y, k))
    return _fields(wording, name, {a: "list[int]"}, "int", text, body, reference, cases)


def count_filtered(content: Content, wording: random.Random) -> Fields:
    condition, k = content.choice(CONDITIONS), content.int(2, 99)
    a, x = wording.choice(LISTS), wording.choice(ITEMS)
    said = condition.say(wording, "", k)
    text = wording.choice((f"count the {a} that are {said}", f"return how many {a} are {said}"))
    name = wording.choice((f"count_{condition.name}", f"count_{condition.name}_{k}", "count_numbers"))
    body = _summing(wording, "1", x, a, condition.code.format(x=x, k=k))
    cases = _lists(wording, lambda y: condition.apply(y, k))
    reference = lambda xs: len([y for y in xs if condition.apply(y, k)])
    return _fields(wording, name, {a: "list[int]"}, "int", text, body, reference, cases)


def reduce_then(content: Content, wording: random.Random) -> Fields:
    reducer, op, k = content.choice(tuple(REDUCERS)), content.choice(OPS), content.int(2, 99)
    a = wording.choice(LISTS)
    start = wording.choice(("take the", "compute the")) + " " + wording.choice(REDUCED[reducer]).format(a=a)
    text = start + wording.choice((" and ", ", then ")) + op.say(wording, "it", k)
    name = wording.choice((f"{reducer}_{op.name}", f"{reducer}_{op.name}_{k}"))
    body = _value(wording, f"{reducer}({a})", op.code.format(x="{x}", k=k))
    reference = lambda xs: op.apply(REDUCERS[reducer](xs), k)  # type: ignore[operator]
    cases = [*_lists(wording, lambda y: y >= k), ([k] * k,)]
    return _fields(wording, name, {a: "list[int]"}, "int", text, body, reference, cases)


def count_letter(content: Content, wording: random.Random) -> Fields:
    letter, op, k = content.choice(LETTERS), content.choice((ADD, MULTIPLY)), content.int(2, 99)
    s = wording.choice(STRINGS)
    start = wording.choice((f"count the letter '{letter}' in {s}", f"count how often '{letter}' occurs in {s}"))
    text = start + wording.choice((" and ", ", then ")) + op.say(wording, "the count", k)
    name = wording.choice((f"count_{letter}", f"count_{letter}_{op.name}", "count_letter"))
    body = _value(wording, f"{s}.count('{letter}')", op.code.format(x="{x}", k=k))
    reference = lambda t: op.apply(sum(c == letter for c in t), k)
    return _fields(wording, name, {s: "str"}, "int", text, body, reference, _texts(wording, letter))


def replace_letters(content: Content, wording: random.Random) -> Fields:
    gone, new = content.sample(LETTERS, 2)
    remove = content.choice((False, True))
    s, c = wording.choice(STRINGS), wording.choice(("c", "ch"))
    if remove:
        text = wording.choice(("remove every '{}' from {} and append '{}'", "delete each '{}' in {} and append '{}'"))
        text = text.format(gone, s, new)
        name = wording.choice((f"remove_{gone}", "remove_letter"))
        joined = f"''.join({c} for {c} in {s} if {c} != '{gone}')"
        body = _value(wording, wording.choice((f"{s}.replace('{gone}', '')", joined)), f"{{x}} + '{new}'")
    else:
        text = wording.choice(("replace every '{}' in {} by '{}'", "change each '{}' in {} to '{}'"))
        text = text.format(gone, s, new)
        name = wording.choice((f"replace_{gone}_{new}", "replace_letter"))
        body = _value(wording, f"{s}.replace('{gone}', '{new}')")

    def reference(t: str) -> str:
        changed = ("" if remove else new).join(t.split(gone))
        return changed + new if remove else changed

    return _fields(wording, name, {s: "str"}, "str", text, body, reference, _texts(wording, gone + new))


def count_words(content: Content, wording: random.Random) -> Fields:
    place, letter = content.choice(("start", "end")), content.choice(LETTERS)
    condition, k = content.choice(ORDERS), content.int(2, 8)
    s, w = wording.choice(STRINGS), wording.choice(("w", "word"))
    long = {
        "above": f"more than {k} letters",
        "below": f"fewer than {k} letters",
        "at_least": f"at least {k} letters",
        "at_most": f"at most {k} letters",
    }[condition.name]
    counting = content.choice((True, False))
    start = (
        wording.choice(("count the", "return the number of"))
        if counting
        else wording.choice(("list the", "return the"))
    )
    text = f"{start} words of {s} that {place} with '{letter}' and have {long}"
    name = wording.choice((f"{'count' if counting else 'list'}_words", f"words_{place}_{letter}"))
    test = f"{w}.{place}swith('{letter}') and {condition.code.format(x=f'len({w})', k=k)}"
    body = (_summing if counting else _listing)(wording, "1" if counting else w, w, f"{s}.split()", test)
    at = 0 if place == "start" else -1

    def reference(t: str) -> int | list[str]:
        kept = [v for v in t.split() if v[at] == letter and condition.apply(len(v), k)]
        return len(kept) if counting else kept

    cases = [(" ".join(v if at == 0 else v[::-1] for v in t.split()),) for (t,) in _sentences(wording, letter, k)]
    return _fields(wording, name, {s: "str"}, "int" if counting else "list[str]", text, body, reference, cases)


def change_and_append(content: Content, wording: random.Random) -> Fields:
    repeat, ending = content.int(1, 9), "".join(content.sample(LETTERS, 2))
    front = content.choice((False, True))
    s = wording.choice(STRINGS)
    done = wording.choice(("repeat", "write")) + f" {s} {repeat} times" if repeat > 1 else f"reverse {s}"
    code = f"{s} * {repeat}" if repeat > 1 else f"{s}[::-1]"
    text = f"{done} and {wording.choice(('put', 'add'))} '{ending}' {'in front' if front else 'at the end'}"
    name = wording.choice((f"{'repeat' if repeat > 1 else 'reverse'}_and_add", "change_text", f"add_{ending}"))
    body = _value(wording, code, f"'{ending}' + {{x}}" if front else f"{{x}} + '{ending}'")

    def reference(t: str) -> str:
        changed = "".join([t] * repeat) if repeat > 1 else "".join(reversed(t))
        return ending + changed if front else changed + ending

    cases = [(t,) for t in ("ab", *wording.sample(WORDS, 4))]
    return _fields(wording, name, {s: "str"}, "str", text, body, reference, cases)


def starts_and_ends(content: Content, wording: random.Random) -> Fields:
    first, last, both = content.choice(LETTERS), content.choice(LETTERS), content.choice(("and", "or"))
    s = wording.choice(STRINGS)
    text = wording.choice(("return whether", "return True if", "check whether"))
    text += f" {s} starts with '{first}' {both} ends with '{last}'"
    name = wording.choice((f"starts_{first}_{both}_ends_{last}", "check_text", f"starts_{both}_ends"))
    body = _truth(wording, f"{s}.startswith('{first}') {both} {s}.endswith('{last}')")
    reference = lambda t: (all if both == "and" else any)((t[0] == first, t[-1] == last))
    words = wording.sample(WORDS, 4)
    tests = [first + words[0] + last, first + words[1] + "-", "-" + words[2] + last, "-" + words[3] + "-"]
    return _fields(
        wording, name, {s: "str"}, "bool", text, body, reference, [(t,) for t in (wording.choice(tests), *tests)]
    )


def last_digit(content: Content, wording: random.Random) -> Fields:
    op, digit = content.choice(STEPS), content.int(0, 9)
    k = 10 * content.int(1, 9) + content.choice((1, 3, 7, 9))  # so that every last digit can occur
    n = wording.choice(SCALARS)
    done = op.say(wording, n, k)
    asked = wording.choice(("return whether the last digit is", "check if the last digit is"))
    text = f"{done} and {asked} {digit}"
    name = wording.choice((f"last_digit_is_{digit}", "check_last_digit"))
    code = op.code.format(x=n, k=k)
    if wording.random() < 0.5:
        body = _truth(wording, f"({code}) % 10 == {digit}")
    else:
        out = wording.choice(RESULTS)
        body = [f"{out} = {code}", f"return {out} % 10 == {digit}"]
    reference = lambda v: op.apply(v, k) % 10 == digit
    hit = next(v for v in range(110, 120) if reference(v))
    cases = [(v,) for v in (wording.randint(hit - 1, hit + 1), hit, hit + 40, hit + 1, hit - 1, hit + 5)]
    return _fields(wording, name, {n: "int"}, "bool", text, body, reference, cases)


def divisibility(content: Content, wording: random.Random) -> Fields:
    first, kind = content.int(2, 20), content.choice(("and", "or", "but not"))
    second = first + content.int(1, 20)
    n = wording.choice(SCALARS)
    text = wording.choice(("return whether", "return True if", "check whether"))
    text += f" {n} is divisible by {first} {kind} by {second}"
    name = wording.choice((f"divisible_{first}_{second}", "check_divisible", "is_divisible"))
    joint = "or" if kind == "or" else "and"
    body = _truth(wording, f"{n} % {first} == 0 {joint} {n} % {second} {'!=' if kind == 'but not' else '=='} 0")

    def reference(v: int) -> bool:
        one, two = v % first == 0, v % second == 0
        return {"and": one and two, "or": one or two, "but not": one and not two}[kind]

    values = [first, second, first * second, first * second + 1, first * (second + 1)]
    cases = [(v,) for v in (wording.choice(values), *values)]
    return _fields(wording, name, {n: "int"}, "bool", text, body, reference, cases)


def clamp(content: Content, wording: random.Random) -> Fields:
    low = content.int(0, 60)
    high = low + content.int(2, 39)
    n = wording.choice(SCALARS)
    text = wording.choice((f"clamp {n} between {low} and {high}", f"limit {n} to the range from {low} to {high}"))
    name = wording.choice((f"clamp_{low}_{high}", "clamp", "limit_range"))
    if wording.random() < 0.5:
        body = [f"return max({low}, min({n}, {high}))"]
    else:
        body = [f"if {n} < {low}:", f"    return {low}", f"if {n} > {high}:", f"    return {high}", f"return {n}"]
    reference = lambda v: sorted((low, v, high))[1]
    return _fields(wording, name, {n: "int"}, "int", text, body, reference, _scalars(wording, low - 1, high))


def digit_sum(content: Content, wording: random.Random) -> Fields:
    op, k = content.choice(OPS), content.int(2, 99)
    n = wording.choice(SCALARS)
    start = wording.choice((f"compute the digit sum of {n}", f"add up the digits of {n}"))
    text = start + wording.choice((" and ", ", then ")) + op.say(wording, "the sum", k)
    name = wording.choice((f"digit_sum_{op.name}", f"digit_sum_{op.name}_{k}", "digit_sum"))
    if wording.random() < 0.6:
        body = _value(wording, f"sum(int(d) for d in str({n}))", op.code.format(x="{x}", k=k))
    else:
        body = ["total = 0", f"for d in str({n}):", "    total += int(d)", f"return {op.code.format(x='total', k=k)}"]

    def reference(v: int) -> int:
        total = 0
        while v:
            v, digit = divmod(v, 10)
            total += digit
        return op.apply(total, k)

    cases = [
        (wording.randint(10, 999),),
        *((wording.randint(10, 10**9),) for _ in range(3)),
        (int(str(k % 9) + "9" * (k // 9)),),
    ]
    return _fields(wording, name, {n: "int"}, "int", text, body, reference, cases)


def is_between(content: Content, wording: random.Random) -> Fields:
    low = content.int(0, 60)
    high, kind = low + content.int(3, 39), content.choice(("inside", "strict", "outside"))
    n = wording.choice(SCALARS)
    says, codes = {
        "inside": (
            f"is between {low} and {high}, inclusive",
            (f"{low} <= {n} <= {high}", f"{n} >= {low} and {n} <= {high}"),
        ),
        "strict": (
            f"is between {low} and {high}, exclusive",
            (f"{low} < {n} < {high}", f"{n} > {low} and {n} < {high}"),
        ),
        "outside": (f"is below {low} or above {high}", (f"{n} < {low} or {n} > {high}",)),
    }[kind]
    text = wording.choice(("return whether", "return True if", "check whether")) + f" {n} {says}"
    name = wording.choice((f"{kind}_{low}_{high}", f"is_{kind}", "check_range"))
    body = _truth(wording, wording.choice(codes))
    reference = lambda v: {
        "inside": v in range(low, high + 1),
        "strict": v in range(low + 1, high),
        "outside": v not in range(low, high + 1),
    }[kind]
    edges = (low, high - 1) if kind == "strict" else (low - 1, high)
    return _fields(wording, name, {n: "int"}, "bool", text, body, reference, _scalars(wording, *edges))


def grade(content: Content, wording: random.Random) -> Fields:
    low = content.int(5, 60)
    high = low + content.int(3, 39)
    labels = wording.choice((("low", "mid", "high"), ("small", "medium", "big"), ("cold", "warm", "hot")))
    n = wording.choice(SCALARS)
    text = f"return '{labels[0]}' if {n} is below {low}, '{labels[2]}' if it is above {high}, else '{labels[1]}'"
    name = wording.choice(("grade", "label", "classify"))
    body = [f"if {n} < {low}:", f"    return '{labels[0]}'"]
    body += [f"{wording.choice(('if', 'elif'))} {n} > {high}:", f"    return '{labels[2]}'", f"return '{labels[1]}'"]
    reference = lambda v: labels[(v >= low) + (v > high)]
    return _fields(wording, name, {n: "int"}, "str", text, body, reference, _scalars(wording, low - 1, high))


def count_in_dict(content: Content, wording: random.Random) -> Fields:
    condition, k = content.choice(CONDITIONS), content.int(2, 99)
    a, x = wording.choice(LISTS), wording.choice(ITEMS)
    said = condition.say(wording, "", k)
    text = (
        wording.choice(("return a dict with the count of", "make a dict that counts"))
        + f" each of the {a} that are {said}"
    )
    name = wording.choice((f"count_each_{condition.name}", "count_each", "make_counts"))
    d = wording.choice(("counts", "result"))
    body = [f"{d} = {{}}", f"for {x} in {a}:", f"    if {condition.code.format(x=x, k=k)}:"]
    body += [f"        {d}[{x}] = {d}.get({x}, 0) + 1", f"return {d}"]
    cases = [(xs + xs[:1],) for (xs,) in _lists(wording, lambda y: condition.apply(y, k))]
    reference = lambda xs: dict(Counter(y for y in xs if condition.apply(y, k)))
    return _fields(wording, name, {a: "list[int]"}, "dict[int, int]", text, body, reference, cases)


def filter_dict(content: Content, wording: random.Random) -> Fields:
    condition, k, keys = content.choice(CONDITIONS), content.int(2, 99), content.choice((False, True))
    d, v = wording.choice(("prices", "scores", "ages")), wording.choice(("v", "value"))
    what = "keys" if keys else "entries"
    text = (
        wording.choice(("return", "keep", "find")) + f" the {what} of {d} with a value {condition.say(wording, '', k)}"
    )
    name = wording.choice((f"{what}_{condition.name}", f"{what}_{condition.name}_{k}", f"filter_{d}"))
    test = condition.code.format(x=v, k=k)
    if keys:
        body = _listing(wording, "k", f"k, {v}", f"{d}.items()", test)
    elif wording.random() < 0.5:
        body = [f"return {{k: {v} for k, {v} in {d}.items() if {test}}}"]
    else:
        body = [
            "result = {}",
            f"for k, {v} in {d}.items():",
            f"    if {test}:",
            f"        result[k] = {v}",
            "return result",
        ]

    def reference(entries: dict[str, int]) -> object:
        kept = {key: value for key, value in entries.items() if condition.apply(value, k)}
        return list(kept) if keys else kept

    lists = _lists(wording, lambda y: condition.apply(y, k))
    cases = [(dict(zip(LETTERS, xs[:2] if xs is lists[0][0] else xs, strict=False)),) for (xs,) in lists]
    return _fields(wording, name, {d: "dict"}, "list" if keys else "dict", text, body, reference, cases)


def part_of_list(content: Content, wording: random.Random) -> Fields:
    part, size = content.choice(("first", "last", "skip")), content.int(2, 5)
    op, k = content.choice(STEPS), content.int(2, 99)
    a, x = wording.choice(LISTS), wording.choice(ITEMS)
    cut = {"first": f"[:{size}]", "last": f"[-{size}:]", "skip": f"[{size}:]"}[part]
    start = f"skip the first {size} {a}" if part == "skip" else f"take the {part} {size} {a}"
    text = (
        start
        + wording.choice((" and ", ", then "))
        + op.say(wording, "each of the rest" if part == "skip" else "each", k)
    )
    name = wording.choice((f"{part}_{size}_{op.name}", f"{op.name}_{part}_{size}", "change_part"))
    body = _listing(wording, op.code.format(x=x, k=k), x, f"{a}{cut}")
    picks = {"first": lambda xs: xs[:size], "last": lambda xs: xs[len(xs) - size :], "skip": lambda xs: xs[size:]}
    lists = [[wording.randint(1, 9) for _ in range(size + extra)] for extra in (1, 2, 3, 4, 5)]
    reference = lambda xs: [op.apply(y, k) for y in picks[part](xs)]
    return _fields(wording, name, {a: "list[int]"}, "list[int]", text, body, reference, [(xs,) for xs in lists])


def rotate(content: Content, wording: random.Random) -> Fields:
    side, size, k = content.choice(("left", "right")), content.int(1, 4), content.int(2, 99)
    a = wording.choice(LISTS)
    text = wording.choice(("rotate", "shift")) + f" {a} to the {side} by {size}, with wrap-around, and append {k}"
    name = wording.choice((f"rotate_{side}", f"rotate_{side}_{size}", "rotate_and_append"))
    at = size if side == "left" else -size
    body = _value(wording, f"{a}[{at}:] + {a}[:{at}]", f"{{x}} + [{k}]")

    def reference(xs: list[int]) -> list[int]:
        return [xs[(i + at) % len(xs)] for i in range(len(xs))] + [k]

    cases = [(wording.sample(range(1, 30), size + extra),) for extra in (1, 2, 4, 5, 6)]
    return _fields(wording, name, {a: "list[int]"}, "list[int]", text, body, reference, cases)


def recursive_sequence(content: Content, wording: random.Random) -> Fields:
    start, op, k = content.int(1, 20), content.choice((ADD, MULTIPLY)), content.int(2, 30)
    n, f = wording.choice(("n", "i")), wording.choice(("f", "term", "seq"))
    sign = "+" if op is ADD else "*"
    text = (
        wording.choice(("compute the sequence", "return the value of"))
        + f" {f}(0) = {start}, {f}({n}) = {f}({n} - 1) {sign} {k}"
    )
    body = _recursion(wording, f"{n} == 0", start, f"{f}({n} - 1) {sign} {k}")
    reference = lambda i: start + k * i if op is ADD else start * k**i
    cases = [(wording.randint(0, 3),), (0,), (1,), (2,), (wording.randint(3, 7),)]
    return _fields(wording, f, {n: "int"}, "int", text, body, reference, cases)


def recursive_fold(content: Content, wording: random.Random) -> Fields:
    product, start, factor = content.choice((False, True)), content.int(1, 60), content.int(1, 9)
    n = wording.choice(("n", "i"))
    f = wording.choice(("fact", "fold") if product else ("add_up", "fold"))
    scaled = f"{n} * {factor}" if factor > 1 else n
    said = f"{factor} times {n}" if factor > 1 else n
    joint = "times" if product else "plus"
    text = wording.choice((f"return {start} if {n} is 0, else", f"start from {start} at {n} = 0, then return"))
    text += f" {said} {joint} {f}({n} - 1)"
    step = f"{scaled} {'*' if product else '+'} {f}({n} - 1)"
    body = _recursion(wording, f"{n} == 0", start, step)

    def reference(count: int) -> int:
        value = start
        for i in range(1, count + 1):
            value = value * i * factor if product else value + i * factor
        return value

    cases = [(wording.randint(1, 3),), (0,), (1,), (2,), (wording.randint(3, 6),)]
    return _fields(wording, f, {n: "int"}, "int", text, body, reference, cases)


def two_arguments(content: Content, wording: random.Random) -> Fields:
    one, two, kind = content.int(2, 30), content.int(2, 30), content.choice(("sum", "difference", "larger", "smaller"))
    a, b = wording.choice((("a", "b"), ("x", "y"), ("first", "second")))
    text = wording.choice(("return", "compute")) + f" the {kind} of {one} times {a} and {two} times {b}"
    name = wording.choice((f"{kind}_of_two", f"scaled_{kind}", f"{kind}_{one}_{two}"))
    left, right = f"{one} * {a}", f"{two} * {b}"
    code = {
        "sum": f"{left} + {right}",
        "difference": f"{left} - {right}",
        "larger": f"max({left}, {right})",
        "smaller": f"min({left}, {right})",
    }[kind]
    body = _value(wording, code)
    folds = {"sum": sum, "difference": lambda pair: pair[0] - pair[1], "larger": max, "smaller": min}
    reference = lambda p, q: folds[kind]((one * p, two * q))  # type: ignore[operator]
    cases = [(wording.randint(1, 9), wording.randint(1, 9)), (1, 50), (50, 1), (7, 3), (0, 4)]
    return _fields(wording, name, {a: "int", b: "int"}, "int", text, body, reference, cases)


def convert_units(content: Content, wording: random.Random) -> Fields:
    (unit, small, size), op, k = content.choice(UNITS), content.choice((ADD, SUBTRACT)), content.int(2, 99)
    text = f"convert {unit} to {small} (times {size})"
    text = text + wording.choice((" and ", ", then ")) + op.say(wording, "the result", k)
    name = wording.choice((f"{unit}_to_{small}", "convert", f"convert_{unit}"))
    out = wording.choice((small, "result"))
    code = f"{unit} * {size}"
    if wording.random() < 0.5:
        body = [f"return {op.code.format(x=code, k=k)}"]
    else:
        body = [f"{out} = {code}", f"return {op.code.format(x=out, k=k)}"]
    values = wording.sample(range(1, 20), 5)
    reference = lambda v: op.apply(sum([size] * v), k)
    return _fields(wording, name, {unit: "int"}, "int", text, body, reference, [(v,) for v in values])


def number_range(content: Content, wording: random.Random) -> Fields:
    start, step, end = content.int(0, 60), content.int(2, 12), content.choice(("included", "excluded"))
    n = wording.choice(SCALARS)
    text = wording.choice(("return", "list")) + f" the numbers from {start} to {n} ({end}) in steps of {step}"
    name = wording.choice((f"range_from_{start}", f"steps_of_{step}", "make_range"))
    body = _value(wording, f"list(range({start}, {n}{' + 1' if end == 'included' else ''}, {step}))")

    def reference(stop: int) -> list[int]:
        last = stop if end == "included" else stop - 1
        return [v for v in range(start, last + 1) if (v - start) % step == 0]

    stops = [start + step * 2 + wording.choice((0, 1)), start, start + step, start + 3 * step - 1, start + 4 * step]
    return _fields(wording, name, {n: "int"}, "list[int]", text, body, reference, [(v,) for v in stops])


def running_total(content: Content, wording: random.Random) -> Fields:
    start, op, k = content.int(0, 99), content.choice((ADD, MULTIPLY)), content.int(1, 9)
    a, x = wording.choice(LISTS), wording.choice(ITEMS)
    sign = "plus" if op is ADD else "times"
    each = f"each number {sign} {k}" if op is ADD or k > 1 else "each number"
    text = wording.choice(("return", "list")) + f" the running totals of {a}, starting from {start} and adding {each}"
    name = wording.choice(("running_total", "cumulative_sum", f"running_from_{start}"))
    out = wording.choice(RESULTS)
    added = op.code.format(x=x, k=k) if op is ADD or k > 1 else x
    body = [f"total = {start}", f"{out} = []", f"for {x} in {a}:", f"    total += {added}", f"    {out}.append(total)"]
    body.append(f"return {out}")
    reference = lambda xs: list(accumulate((op.apply(y, k) for y in xs), initial=start))[1:]
    cases = [([wording.randint(1, 9) for _ in range(count)],) for count in (2, 3, 4, 5, 1)]
    return _fields(wording, name, {a: "list[int]"}, "list[int]", text, body, reference, cases)


TEMPLATES: tuple[Template, ...] = (
    *(filter_numbers, map_numbers, map_then_filter, filter_then_map, sum_filtered, count_filtered, reduce_then),
    *(count_letter, replace_letters, count_words, change_and_append, starts_and_ends, last_digit, divisibility, clamp),
    *(digit_sum, is_between, grade, count_in_dict, filter_dict, part_of_list, rotate, recursive_sequence),
    *(recursive_fold, two_arguments, convert_units, number_range, running_total),
)
