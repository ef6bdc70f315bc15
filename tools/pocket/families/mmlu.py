"""Multiple choice in the manner of MMLU (Hendrycks et al. 2021, arXiv 2009.03300), answered with a chain of thought.

Twelve templates are twelve subjects: four of mathematics, four of computer science (what short Python gives) and four
that need no more than reading closely. Fields: `subject`; `question`; the options `A`, `B`, `C`, `D`; `reasoning`, whose
sentences compute the answer; and `answer`, the letter of the right option. An answer gives the text of an option: models
of a few million parameters can compute it, but name its letter no better than chance. Wrong options are the results of
plausible slips. Their choice and order belong to the wording: a problem of the test split never occurs in training with
its options in another order.
"""

import itertools
import random
from collections.abc import Iterable, Sequence

from pocket.problems import Content, Fields, Template

LETTERS = "ABCD"
NAMES = ("Tom", "Ben", "Sam", "Max", "Leo", "Anna", "Mia", "Lily", "Emma", "Sara")
COLORS = ("red", "blue", "green", "white", "black", "brown", "gray")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PLACES = ("school", "museum", "hospital", "park", "zoo", "shop", "hotel", "church")
THINGS = ("stamps", "coins", "cards", "shells", "marbles", "stickers")
GOODS = ("book", "bike", "hat", "shirt", "boat", "bed")
OWNED = (("hat", "hats"), ("shirt", "shirts"), ("book", "books"), ("bag", "bags"), ("ticket", "tickets"))
LISTS = ("nums", "values", "numbers")


def multiple_choice(
    wording: random.Random, subject: str, question: str, right: object, wrong: Iterable[object], reasoning: str
) -> Fields:
    """Fields of a problem whose options are the right one and three of `wrong`, all different, in random order.

    Raises ValueError if `wrong` holds fewer than three that differ from it and from each other.
    """
    options = wording.sample(sorted({str(option) for option in wrong} - {str(right)}), 3)
    letter = wording.choice(LETTERS)
    options.insert(LETTERS.index(letter), str(right))
    return {
        "subject": subject,
        "question": question,
        **dict(zip(LETTERS, options, strict=True)),
        "reasoning": f"{reasoning}.",
        "answer": letter,
    }


def slips(right: int, *others: int) -> set[int]:
    """Wrong results, none negative: those of a wrong step, and numbers near the right one."""
    return {
        result
        for result in (*others, right - 1, right + 1, right - 2, right + 2, right - 10, right + 10)
        if result >= 0
    }


# Mathematics


def percentages(content: Content, wording: random.Random) -> Fields:
    tenth, tens, extra = content.int(2, 12), content.int(1, 9), content.int(2, 20)
    rises, good, choose = content.choice((True, False)), wording.choice(GOODS), wording.choice
    price, part = 10 * tenth, tens * tenth
    new = price + part if rises else price - part
    right = new + extra
    change = choose(("rises", "goes up")) if rises else choose(("falls", "goes down"))
    question = (
        f"A {good} costs {price} dollars. The price {change} by {tens}0 percent. A box for it costs {extra} dollars. "
        + choose(
            (f"How much are the {good} and the box now?", f"How many dollars are needed for the {good} and the box?")
        )
    )
    reasoning = (
        f"10 percent of {price} is {tenth}. {tens}0 percent is {tens} * {tenth} = {part}. "
        f"{choose(('Now', 'Then'))} {price} {'+' if rises else '-'} {part} = {new} and {new} + {extra} = {right}"
    )
    other_way = price - part if rises else price + part
    wrong = slips(right, new, other_way + extra, price + extra, part + extra)
    return multiple_choice(wording, "percentages", question, right, wrong, reasoning)


def linear_equations(content: Content, wording: random.Random) -> Fields:
    a, x, b, c = content.int(2, 9), content.int(2, 12), content.int(1, 20), content.int(2, 6)
    plus = content.choice((True, False))
    total = a * x + b if plus else a * x - b
    right = c * x
    equation = f"{a}x {'+' if plus else '-'} {b} = {total}"
    question = wording.choice(
        (f"If {equation}, what is {c}x?", f"Let {equation}. What is {c}x?", f"Given {equation}, find {c}x.")
    )
    so = wording.choice(("So", "Thus", "Hence"))
    reasoning = (
        f"{a}x = {total} {'-' if plus else '+'} {b} = {a * x}. {so} x = {a * x} / {a} = {x}. "
        f"Then {c}x = {c} * {x} = {right}"
    )
    wrong = slips(right, x, right + c, right - c, c + x, a * x)
    return multiple_choice(wording, "linear_equations", question, right, wrong, reasoning)


def sequences(content: Content, wording: random.Random) -> Fields:
    low, step, wanted = content.int(1, 80), content.int(2, 9), content.int(5, 7)
    up = content.choice((True, False))
    terms = [low + step * index for index in range(wanted)]
    if not up:
        terms.reverse()
    start, right = ", ".join(map(str, terms[:3])), terms[-1]
    question = wording.choice(
        (
            f"A sequence starts with the terms {start} and goes on in this way. What is term {wanted}?",
            f"The first terms of an arithmetic sequence are {start}. What is term {wanted}?",
        )
    )
    next_ones = ", ".join(f"term {index} is {term}" for index, term in enumerate(terms[3:], 4))
    reasoning = f"Each term is {step} {'more' if up else 'less'} than the one before. So {next_ones}"
    wrong = slips(right, right + step, right - step, terms[-2], terms[2] + wanted)
    return multiple_choice(wording, "sequences", question, right, wrong, reasoning)


def remainders(content: Content, wording: random.Random) -> Fields:
    children, each = content.int(3, 9), content.int(3, 12)
    rest, gone, over = content.int(1, children - 1), content.int(3, 20), content.choice((True, False))
    (a, b), things = wording.sample(NAMES, 2), wording.choice(THINGS)
    kept, shared = children * each + rest, children * each
    has = f"{a} has {kept + gone} {things} and gives {gone} to {b}."
    ask = f"How many {things} are left over?" if over else f"How many {things} does each child get?"
    question = f"{has} {wording.choice(('Then', 'After that'))} {children} children share the rest equally. {ask}"
    right = rest if over else each
    reasoning = (
        f"{a} keeps {kept + gone} - {gone} = {kept} {things}. {children} * {each} = {shared} and {kept} - {shared} = "
        f"{rest}. So {'the rest is' if over else 'each child gets'} {right}"
    )
    wrong = {*range(children), each} if over else {*slips(each, children), rest}
    return multiple_choice(wording, "remainders", question, right, wrong, reasoning)


# Computer science


def list_items(content: Content, wording: random.Random) -> Fields:
    kind = content.choice(("items", "slice", "extremes"))
    items, name = content.sample(range(1, 31), 5), wording.choice(LISTS)
    if kind == "items":
        i, j = content.sample(range(-5, 5), 2)
        right = items[i] + items[j]
        code = f"{name}[{i}] + {name}[{j}]"
        looked_up = f"{name}[{i}] is {items[i]} and {name}[{j}] is {items[j]}"
        reasoning = f"{looked_up}. {items[i]} + {items[j]} = {right}"
        wrong = slips(right, abs(items[i] - items[j]), items[i], items[j], items[i] + items[(j + 1) % 5])
    elif kind == "slice":
        first = content.int(0, 2)
        x, y, z = items[first : first + 3]
        right = x + y + z
        code = f"sum({name}[{first}:{first + 3}])"
        reasoning = f"{name}[{first}:{first + 3}] is [{x}, {y}, {z}]. {x} + {y} = {x + y} and {x + y} + {z} = {right}"
        wrong = slips(right, x + y, y + z, sum(items[first : first + 4]))
    else:
        high, low = max(items), min(items)
        right = high - low
        code = f"max({name}) - min({name})"
        reasoning = f"max({name}) is {high} and min({name}) is {low}. {high} - {low} = {right}"
        wrong = slips(right, high, low, high + low)
    question = wording.choice(("What is {} for {}?", "What is the value of {} if {}?")).format(
        code, f"{name} = {items}"
    )
    return multiple_choice(wording, "list_items", question, right, wrong, reasoning)


def function_calls(content: Content, wording: random.Random) -> Fields:
    a, b, c, n = content.int(2, 6), content.int(5, 20), content.int(1, 9), content.int(2, 9)
    sign, outer = content.choice("+-"), content.choice("fg")
    moved = lambda x: x + c if sign == "+" else x - c
    code = [f"def f(x):\n    return x * {a} + {b}", f"def g(x):\n    return x {sign} {c}"]
    wording.shuffle(code)
    f_of = lambda x: f"f({x}) is {x} * {a} + {b} = {x * a} + {b} = {x * a + b}"
    g_of = lambda x: f"g({x}) is {x} {sign} {c} = {moved(x)}"
    if outer == "g":
        inner, right = n * a + b, moved(n * a + b)
        reasoning = f"{f_of(n)}. {g_of(inner)}"
        swapped = moved(n) * a + b
    else:
        n += c if sign == "-" else 0  # no negative numbers
        inner, right = moved(n), moved(n) * a + b
        reasoning = f"{g_of(n)}. {f_of(inner)}"
        swapped = moved(n * a + b)
    call = f"{outer}({'f' if outer == 'g' else 'g'}({n}))"
    lead = wording.choice(("What is {} with this code?", "What does {} return?", "What is the value of {}?"))
    question = "\n".join([lead.format(call), *code])
    return multiple_choice(
        wording, "function_calls", question, right, slips(right, swapped, inner, n * a + b, right + a), reasoning
    )


def conditions(content: Content, wording: random.Random) -> Fields:
    low, gap, branch = content.int(11, 50), content.int(5, 30), content.int(0, 2)
    a, high = content.int(2, 9), low + gap
    x = content.int(*((high + 1, high + 20), (low + 1, high), (a + 1, low))[branch])
    colors = wording.sample(COLORS, 4)
    first, second, third, _ = colors
    code = (
        f"def f(x):\n    if x > {high}:\n        return '{first}'\n    if x > {low}:\n        return '{second}'\n"
        f"    return '{third}'"
    )
    lead = wording.choice(("What is f({}) with this code?", "What does f({}) return?")).format(f"{x - a} + {a}")
    tests = [f"{x} > {high} is {x > high}."] + ([f"{x} > {low} is {x > low}."] if branch else [])
    reasoning = f"{x - a} + {a} = {x}. {' '.join(tests)} So f returns {colors[branch]}"
    return multiple_choice(wording, "conditions", f"{lead}\n{code}", colors[branch], colors, reasoning)


def list_methods(content: Content, wording: random.Random) -> Fields:
    methods, name = content.sample(("append", "insert", "pop()", "pop(0)", "reverse()"), 2), wording.choice(LISTS)
    digits = content.sample(range(1, 10), 4 + len({"append", "insert"} & {*methods}))
    state, new = digits[:4], digits[4:]
    lines, done = [f"{name} = {state}"], []
    for method in methods:
        if method == "append":
            state.append(new[0])
            method = f"append({new.pop(0)})"
        elif method == "insert":
            state.insert(0, new[0])
            method = f"insert(0, {new.pop(0)})"
        elif method == "reverse()":
            state.reverse()
        else:
            state.pop(0 if "0" in method else -1)
        lines.append(f"{name}.{method}")
        done.append(f"After {method} it is {state}.")
    at = content.int(0, len(state) - 1)
    lead = wording.choice(("What is {} with this code?", "What is {} after this code?")).format(f"{name}[{at}]")
    reasoning = f"{' '.join(done)} {name}[{at}] is {state[at]}"
    return multiple_choice(wording, "list_methods", "\n".join([lead, *lines]), state[at], digits, reasoning)


# Reading


def calendar(content: Content, wording: random.Random) -> Fields:
    today, days, moved = content.int(0, 6), content.int(14, 60), content.int(2, 7)
    later, event = content.choice((True, False)), wording.choice(("festival", "match", "race", "game", "visit"))
    total = days + moved if later else days - moved
    whole, rest = total - total % 7, total % 7
    question = (
        f"Today is {DAYS[today]}. The {event} was planned in {days} days, but it is "
        f"{moved} days {'later' if later else 'earlier'}. {wording.choice(('On which day is it?', 'What day is that?'))}"
    )
    counted = ", ".join(DAYS[(today + step) % 7] for step in range(1, rest + 1)) or DAYS[today]
    reasoning = (
        f"It is in {days} {'+' if later else '-'} {moved} = {total} days. {total} - {whole} = {rest}. "
        f"{rest} {'day' if rest == 1 else 'days'} after {DAYS[today]}: {counted}"
    )
    return multiple_choice(wording, "calendar", question, DAYS[(today + rest) % 7], DAYS, reasoning)


def order_of_events(content: Content, wording: random.Random) -> Fields:
    people, asked = content.sample(NAMES, 4), content.int(0, 3)
    verb = wording.choice(("came", "left", "started", "went home"))
    pairs = list(itertools.pairwise(people))
    facts = [wording.choice((f"{a} {verb} before {b}.", f"{b} {verb} after {a}.")) for a, b in pairs]
    wording.shuffle(facts)
    place = ("first", "second", "third", "last")[asked]
    question = f"{' '.join(facts)} Who {verb} {place}?"
    before = ", ".join(f"{a} {'is ' * (index == 0)}before {b}" for index, (a, b) in enumerate(pairs))
    reasoning = f"{before}. So the order is {', '.join(people)}. The {place} is {people[asked]}"
    return multiple_choice(wording, "order_of_events", question, people[asked], people, reasoning)


def trades(content: Content, wording: random.Random) -> Fields:
    people, colors = content.sample(NAMES, 4), content.sample(COLORS, 4)
    thing, things = wording.choice(OWNED)
    owners = dict(zip(people, colors, strict=True))
    has = [f"{person} has a {color} {thing}" for person, color in owners.items()]
    question = f"{', '.join(has[:3])} and {has[3]}."
    done = []
    for turn in ("first", "second"):
        a, b = content.sample(people, 2)
        owners[a], owners[b] = owners[b], owners[a]
        question += f" {'Then ' * (turn == 'second')}{a} and {b} trade {things}."
        done.append(f"After the {turn} trade {a} has {owners[a]} and {b} has {owners[b]}.")
    person, of_person = content.choice(people), content.choice((True, False))
    ask = f"Which {thing} does {person} have now?" if of_person else f"Who has the {owners[person]} {thing} now?"
    right, wrong = (owners[person], colors) if of_person else (person, people)
    reasoning = f"{' '.join(done)} So {f'{person} has' if of_person else f'{owners[person]} is with'} {right}"
    return multiple_choice(wording, "trades", f"{question} {ask}", right, wrong, reasoning)


def comparisons(content: Content, wording: random.Random) -> Fields:
    places, counts = content.sample(PLACES, 4), content.sample(range(100, 1000), 4)
    asked = content.choice(("most", "second most", "fewest"))
    what = wording.choice(("visitors", "workers", "rooms", "books"))
    form = wording.choice(("The {} has {} {}.", "There are {1} {2} in the {0}."))
    facts = " ".join(form.format(place, count, what) for place, count in zip(places, counts, strict=True))
    ranked = sorted(zip(counts, places, strict=True), reverse=True)
    count, place = ranked[{"most": 0, "second most": 1, "fewest": 3}[asked]]
    listed = ", ".join(str(number) for number, _ in ranked)
    reasoning = f"From most to fewest: {listed}. The {asked} are {count}, in the {place}"
    question = f"{facts} {wording.choice(('Which place has', 'Which one has'))} the {asked} {what}?"
    return multiple_choice(wording, "comparisons", question, place, places, reasoning)


MATHEMATICS: Sequence[Template] = (percentages, linear_equations, sequences, remainders)
COMPUTING: Sequence[Template] = (list_items, function_calls, conditions, list_methods)
READING: Sequence[Template] = (calendar, order_of_events, trades, comparisons)
TEMPLATES: tuple[Template, ...] = (*MATHEMATICS, *COMPUTING, *READING)
