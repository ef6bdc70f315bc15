"""Word problems in the manner of GSM8K: grade-school arithmetic of one to four steps, with a chain of thought.

Fields: `question`, and `answer`, whose sentences hold one explicit equation each and whose last line is `#### result`.
Seven templates for every number of steps. Numbers stay small; some questions name them in another order than the answer
uses them, and some hold a number that is not needed.
"""

import random

from pocket.problems import Content, Fields, templates

PEOPLE = (
    ("Tom", "he", "his"), ("Ben", "he", "his"), ("Sam", "he", "his"), ("Max", "he", "his"), ("Leo", "he", "his"),
    ("Anna", "she", "her"), ("Mia", "she", "her"), ("Lily", "she", "her"), ("Emma", "she", "her"), ("Sara", "she", "her"),
)  # fmt: skip
THINGS = ("stamps", "coins", "cards", "shells", "marbles", "stickers")
GOODS = ("pens", "books", "toys", "cups", "hats", "balls")
FOODS = ("apples", "cookies", "plums", "eggs", "cakes")
ONLY = ("", "", "So ", "Thus ")
FIRST = ("", "", "", "First, ")
MIDDLE = ("", "", "Then ", "Next, ")
LAST = ("", "So ", "So ", "Therefore ", "Thus ", "This means ", "Then ")


class Tale:
    """The wording of one problem, and the steps of its answer so far."""

    def __init__(self, wording: random.Random) -> None:
        self.wording = wording
        self._times = wording.choice(("*", "*", "x", "times"))
        self._steps: list[str] = []
        self._result = 0

    def pick(self, *options: str) -> str:
        return self.wording.choice(options)

    def people(self, count: int) -> list[tuple[str, str, str]]:
        """Different people: name, `he` or `she`, `his` or `her`."""
        return self.wording.sample(PEOPLE, count)

    def names(self, count: int) -> list[str]:
        return [name for name, _, _ in self.people(count)]

    def two(self, options: tuple[str, ...]) -> list[str]:
        return self.wording.sample(options, 2)

    def mix(self, *sentences: str) -> str:
        """The sentences in any order."""
        return " ".join(self.wording.sample(sentences, len(sentences)))

    def step(self, left: int, sign: str, right: int, *phrases: str) -> int:
        """One sentence of the answer: a phrase with the equation in place of `{}`. Returns the result."""
        results = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}
        self._result = results[sign]
        if sign in "+*" and self.wording.random() < 0.15:
            left, right = right, left
        equation = f"{left} {self._times if sign == '*' else sign} {right} = {self._result}"
        self._steps.append(self.pick(*phrases).replace("{}", equation))
        return self._result

    def fields(self, question: str) -> Fields:
        last = len(self._steps) - 1
        sentences = []
        for index, step in enumerate(self._steps):
            links = ONLY if last == 0 else LAST if index == last else MIDDLE if index else FIRST
            sentence = self.pick(*links) + step + "."
            sentences.append(sentence[0].upper() + sentence[1:])
        return {"question": question, "answer": " ".join(sentences) + f"\n#### {self._result}"}


# One step


def collect_more(content: Content, t: Tale) -> Fields:
    had, more = content.int(11, 60), content.int(11, 39)
    thing = t.pick(*THINGS)
    [(name, he, his)] = t.people(1)
    t.step(had, "+", more, f"{name} has {{}} {thing}", f"{he} has {{}} {thing} now", f"there are {{}} {thing}")
    story = t.pick(
        f"{name} has {had} {thing}. {he.title()} {t.pick('gets', 'finds', 'buys')} {more} more.",
        f"{name} got {more} {thing} from {his} {t.pick('friend', 'aunt')}. Before that {he} had {had} {thing}.",
    )
    return t.fields(f"{story} How many {thing} does {name} have {t.pick('now', 'in total', 'in all')}?")


def give_away(content: Content, t: Tale) -> Fields:
    given, left = content.int(8, 45), content.int(6, 50)
    thing = t.pick(*THINGS)
    a, b = t.names(2)
    had = given + left
    t.step(had, "-", given, f"{a} has {{}} {thing} left", f"{{}} {thing} are left", f"{a} keeps {{}} {thing}")
    story = t.pick(
        f"{a} had {had} {thing} and gave {given} of them to {b}.",
        f"{b} got {given} {thing} from {a}, who had {had} {thing}.",
        f"{given} of the {had} {thing} of {a} were given to {b}.",
    )
    return t.fields(f"{story} How many {thing} {t.pick(f'does {a} still have', f'does {a} have left', 'are left')}?")


def compare_scores(content: Content, t: Tale) -> Fields:
    low, more = content.int(10, 50), content.int(5, 40)
    thing = t.pick("points", "fish", "cards", "books")
    a, b = t.names(2)
    verb = {"points": "scored", "fish": "caught", "cards": "found", "books": "read"}[thing]
    high = low + more
    t.step(high, "-", low, f"{a} {verb} {{}} more {thing}", f"the difference is {{}} {thing}")
    story = t.mix(f"{a} {verb} {high} {thing}.", f"{b} {verb} {low} {thing}.")
    ask = t.pick(f"How many more {thing} than {b} did {a} get?", f"How many fewer {thing} did {b} get than {a}?")
    return t.fields(f"{story} {ask}")


def full_boxes(content: Content, t: Tale) -> Fields:
    boxes, each, age = content.int(2, 12), content.int(2, 12), content.int(6, 15)
    food, box = t.pick(*FOODS), t.pick("boxes", "bags", "baskets")
    [(name, he, _)] = t.people(1)
    t.step(boxes, "*", each, f"{name} has {{}} {food}", f"{he} buys {{}} {food}", f"the {box} hold {{}} {food}")
    story = t.pick(
        f"{name} is {age} years old. {he.title()} buys {boxes} {box} of {food} with {each} {food} in each.",
        f"{name}, who is {age}, buys {boxes} {box}. Each holds {each} {food}.",
        f"There are {each} {food} in each of the {boxes} {box} that {name}, who is {age}, buys.",
    )
    return t.fields(f"{story} How many {food} {t.pick(f'does {he} buy', 'is that', 'are there in all')}?")


def share_equally(content: Content, t: Tale) -> Fields:
    kids, each, other = content.int(2, 12), content.int(2, 12), content.int(3, 15)
    food, drink = t.two(FOODS)
    total = kids * each
    t.step(total, "/", kids, f"each child gets {{}} {food}", f"{{}} {food} go to each child")
    story = t.pick(
        f"There are {total} {food} and {other} {drink} for {kids} children.",
        f"{kids} children have {other} {drink} and {total} {food}.",
    )
    share = t.pick(f"The {food} are shared equally.", f"They share the {food} equally.")
    return t.fields(f"{story} {share} How many {food} does each child get?")


def ages(content: Content, t: Tale) -> Fields:
    age, apart, kind = content.int(21, 60), content.int(3, 19), content.choice(("older", "younger"))
    a, b = t.names(2)
    t.step(age, "+" if kind == "older" else "-", apart, f"{b} is {{}} years old", f"the age of {b} is {{}}")
    story = t.mix(f"{b} is {apart} years {kind} than {a}.", f"{a} is {age} years old.")
    return t.fields(f"{story} {t.pick(f'How old is {b}?', f'What is the age of {b}?')}")


def trip(content: Content, t: Tale) -> Fields:
    hours, speed, friends = content.int(2, 9), content.int(5, 15), content.int(2, 6)
    asked = content.choice(("distance", "hours", "speed"))
    ride = t.pick("ride", "travel")
    (name,) = t.names(1)
    who, far = f"{name} and {friends} friends", hours * speed
    if asked == "distance":
        t.step(speed, "*", hours, f"they {ride} {{}} miles", "the trip is {} miles long")
        ask = t.pick(f"How far do they {ride}?", f"How many miles do they {ride}?")
        return t.fields(f"{who} {ride} for {hours} hours at {speed} miles per hour. {ask}")
    if asked == "hours":
        t.step(far, "/", speed, f"they {ride} for {{}} hours", "the trip takes {} hours")
        return t.fields(f"{who} {ride} {far} miles at {speed} miles per hour. How many hours does it take?")
    t.step(far, "/", hours, f"they {ride} {{}} miles per hour", "the speed is {} miles per hour")
    return t.fields(f"{who} {ride} {far} miles in {hours} hours. How many miles per hour is that?")


# Two steps


def shop_change(content: Content, t: Tale) -> Fields:
    count, price, left = content.int(2, 9), content.int(2, 9), content.int(2, 25)
    good = t.pick(*GOODS)
    [(name, he, _)] = t.people(1)
    money = count * price + left
    cost = t.step(count, "*", price, f"the {good} cost {{}} dollars", f"{he} spends {{}} dollars")
    t.step(money, "-", cost, f"{he} has {{}} dollars left", "{} dollars are left", f"{name} keeps {{}} dollars")
    story = t.pick(
        f"{name} has {money} dollars and buys {count} {good} for {price} dollars each.",
        f"{name} buys {count} {good}. Each costs {price} dollars. {he.title()} had {money} dollars.",
    )
    return t.fields(f"{story} How {t.pick('many dollars are', 'much money is')} left?")


def bus_stop(content: Content, t: Tale) -> Fields:
    start, off, on = content.int(15, 50), content.int(3, 12), content.int(3, 20)
    bus = t.pick("bus", "train", "boat")
    stay = t.step(start, "-", off, "{} people stay", f"{{}} people stay on the {bus}")
    t.step(stay, "+", on, f"there are {{}} people on the {bus}", "{} people are on it now")
    story = t.pick(
        f"A {bus} has {start} people on it. At a stop {off} get off and {on} get on.",
        f"At a stop {on} people get on a {bus} and {off} get off. It had {start} people before.",
    )
    return t.fields(f"{story} How many people are on the {bus} {t.pick('now', 'after the stop')}?")


def bags_and_loose(content: Content, t: Tale) -> Fields:
    bags, each, loose = content.int(2, 10), content.int(2, 10), content.int(2, 15)
    food = t.pick(*FOODS)
    [(name, he, _)] = t.people(1)
    bagged = t.step(bags, "*", each, f"the bags hold {{}} {food}", f"{{}} {food} are in bags")
    t.step(bagged, "+", loose, f"{name} has {{}} {food}", f"{he} has {{}} {food} in all", f"there are {{}} {food}")
    story = t.pick(
        f"{name} has {bags} bags with {each} {food} in each and {loose} more on a plate.",
        f"{name} has {loose} {food} on a plate. {he.title()} also has {bags} bags of {each} {food}.",
    )
    return t.fields(f"{story} How many {food} does {name} have {t.pick('in total', 'in all')}?")


def perimeter(content: Content, t: Tale) -> Fields:
    width, more = content.int(3, 24), content.int(1, 22)
    place = t.pick("garden", "field", "room", "park")
    length = width + more
    half = t.step(length, "+", width, "two sides are {} meters", "half of it is {} meters")
    t.step(half, "+", half, "the perimeter is {} meters", "all four sides are {} meters")
    size = t.pick(f"{length} meters long and {width} meters wide", f"{width} meters wide and {length} meters long")
    return t.fields(f"A {place} is a rectangle, {size}. What is {t.pick('its', 'the')} perimeter?")


def times_as_many(content: Content, t: Tale) -> Fields:
    few, factor, more = content.int(3, 12), content.int(2, 6), content.int(2, 15)
    thing = t.pick(*THINGS)
    a, b = t.names(2)
    many = t.step(few, "*", factor, f"{factor} times as many is {{}}", f"{factor} times the {thing} of {a} is {{}}")
    t.step(many, "+", more, f"{b} has {{}} {thing}", f"there are {{}} {thing} for {b}")
    story = t.mix(f"{a} has {few} {thing}.", f"{b} has {more} more than {factor} times as many {thing} as {a}.")
    return t.fields(f"{story} How many {thing} does {b} have?")


def share_rest(content: Content, t: Tale) -> Fields:
    kids, each, eaten = content.int(2, 9), content.int(2, 9), content.int(2, 15)
    food = t.pick(*FOODS)
    [(name, he, _)] = t.people(1)
    total = kids * each + eaten
    rest = t.step(total, "-", eaten, f"{{}} {food} are left", f"{he} has {{}} {food} left")
    t.step(rest, "/", kids, f"each friend gets {{}} {food}", f"{{}} {food} go to each friend")
    story = t.pick(
        f"{name} has {total} {food}. {he.title()} eats {eaten} and shares the rest equally among {kids} friends.",
        f"{kids} friends share the {food} of {name} equally. There were {total}, but {name} ate {eaten} before.",
    )
    return t.fields(f"{story} How many {food} does each friend get?")


def pages_left(content: Content, t: Tale) -> Fields:
    one, two, left = content.int(8, 25), content.int(8, 25), content.int(5, 40)
    chapters = content.int(3, 9)
    [(name, he, _)] = t.people(1)
    total = one + two + left
    read = t.step(one, "+", two, f"{name} read {{}} pages", f"{he} read {{}} pages", "{} pages were read")
    t.step(total, "-", read, "{} pages are left", f"{he} has {{}} pages left")
    days = t.pick(f"{one} pages on Monday and {two} on Tuesday", f"{one} pages today and {two} yesterday")
    story = t.mix(f"{name} read {days}.", f"The book of {name} has {total} pages and {chapters} chapters.")
    return t.fields(f"{story} How many pages are {t.pick('left', 'still to read')}?")


# Three steps


def two_goods(content: Content, t: Tale) -> Fields:
    n, p, m, q = (content.int(2, 8) for _ in range(4))
    a, b = t.two(GOODS)
    (name,) = t.names(1)
    first = t.step(n, "*", p, f"the {a} cost {{}}", f"the {a} are {{}} dollars")
    second = t.step(m, "*", q, f"the {b} cost {{}}", f"the {b} are {{}} dollars")
    t.step(first, "+", second, "the total is {} dollars", f"{name} pays {{}} dollars")
    story = t.pick(
        f"{name} buys {n} {a} for {p} dollars each and {m} {b} for {q} dollars each.",
        f"{a.title()} cost {p} dollars each and {b} cost {q} dollars each. {name} buys {n} {a} and {m} {b}.",
    )
    return t.fields(f"{story} How much does {name} {t.pick('pay', 'spend')} {t.pick('in total', 'in all')}?")


def savings(content: Content, t: Tale) -> Fields:
    weeks, each, had, left = content.int(2, 8), content.int(2, 8), content.int(15, 30), content.int(2, 14)
    good = t.pick("bike", "coat", "lamp", "game")
    [(name, he, _)] = t.people(1)
    cost = weeks * each + had - left
    saved = t.step(weeks, "*", each, f"{name} saves {{}} dollars", f"{he} saves {{}} dollars")
    money = t.step(saved, "+", had, f"{he} has {{}} dollars", "that makes {} dollars")
    t.step(money, "-", cost, f"{he} has {{}} dollars left", "{} dollars are left")
    story = t.pick(
        f"{name} has {had} dollars and saves {each} dollars a week for {weeks} weeks.",
        f"{name} saves {each} dollars a week for {weeks} weeks. {he.title()} had {had} dollars before.",
    )
    ask = t.pick(f"How much money does {he} have left?", "How many dollars are left?")
    return t.fields(f"{story} Then {he} buys a {good} for {cost} dollars. {ask}")


def family_ages(content: Content, t: Tale) -> Fields:
    age, factor, more = content.int(3, 12), content.int(2, 4), content.int(2, 20)
    a, b, c = t.names(3)
    second = t.step(age, "*", factor, f"{b} is {{}}", f"{b} is {{}} years old")
    third = t.step(second, "+", more, f"{c} is {{}}", f"{c} is {{}} years old")
    t.step(age, "+", third, f"{a} and {c} are {{}} together", "the sum of the ages is {}")
    story = t.mix(
        f"{a} is {age} years old.",
        f"{b} is {factor} times as old as {a}.",
        f"{c} is {more} years older than {b}.",
    )
    ask = t.pick(f"How old are {a} and {c} together?", f"What is the sum of the ages of {a} and {c}?")
    return t.fields(f"{story} {ask}")


def three_days(content: Content, t: Tale) -> Fields:
    first, more, third, age = content.int(5, 20), content.int(2, 10), content.int(5, 25), content.int(7, 15)
    thing, verb = t.wording.choice((("pages", "read"), ("eggs", "sold"), ("miles", "ran"), ("fish", "caught")))
    [(name, he, _)] = t.people(1)
    second = t.step(first, "+", more, f"on Tuesday {he} {verb} {{}} {thing}", f"{{}} {thing} on Tuesday")
    both = t.step(first, "+", second, f"that is {{}} {thing} in two days", "the two days make {}")
    t.step(both, "+", third, f"{name} {verb} {{}} {thing}", "the total is {}", f"{he} {verb} {{}} {thing} in all")
    who = f"{name}, who is {age},"
    story = t.pick(
        f"{who} {verb} {first} {thing} on Monday, {more} more than that on Tuesday and {third} on Friday.",
        f"{who} {verb} {third} {thing} on Friday, {first} on Monday, and on Tuesday {more} more than on Monday.",
    )
    return t.fields(f"{story} How many {thing} is that {t.pick('in total', 'in all')}?")


def work_hours(content: Content, t: Tale) -> Fields:
    one, two, wage, lunch = content.int(2, 6), content.int(2, 6), content.int(4, 10), content.int(2, 12)
    [(name, he, _)] = t.people(1)
    hours = t.step(one, "+", two, f"{name} works {{}} hours", f"{he} works {{}} hours")
    pay = t.step(hours, "*", wage, f"{he} earns {{}} dollars", "the pay is {} dollars")
    t.step(pay, "-", lunch, f"{he} has {{}} dollars left", "{} dollars are left")
    days = t.wording.choice((("today", "tomorrow"), ("on Monday", "on Friday")))
    story = t.mix(
        f"{name} works {one} hours {days[0]} and {two} hours {days[1]}.",
        f"{name} earns {wage} dollars an hour.",
        f"{name} spends {lunch} dollars on {t.pick('lunch', 'the bus')}.",
    )
    return t.fields(f"{story} How {t.pick('many dollars are', 'much money is')} left?")


def cards_shared(content: Content, t: Tale) -> Fields:
    packs, each, kids, extra = content.int(3, 9), content.int(3, 9), content.int(5, 9), content.int(1, 2)
    thing = t.pick(*THINGS)
    (name,) = t.names(1)
    more = -packs * each % kids + extra * kids
    packed = t.step(packs, "*", each, f"the packs hold {{}} {thing}", f"{{}} {thing} are in packs")
    total = t.step(packed, "+", more, f"there are {{}} {thing}", f"{name} has {{}} {thing}")
    t.step(total, "/", kids, f"each child gets {{}} {thing}", f"{{}} {thing} go to each child")
    story = t.pick(
        f"{name} has {packs} packs of {each} {thing} and {more} more {thing}. {kids} children share them equally.",
        f"{kids} children share {packs} packs of {each} {thing} and {more} more {thing} equally, all from {name}.",
    )
    return t.fields(f"{story} How many {thing} does each child get?")


def fence(content: Content, t: Tale) -> Fields:
    width, more, gate = content.int(3, 20), content.int(1, 15), content.int(2, 5)
    place = t.pick("garden", "field", "yard", "park")
    length = width + more
    half = t.step(length, "+", width, "two sides are {} meters", "half of the way around is {}")
    around = t.step(half, "+", half, "the perimeter is {} meters", "all four sides are {}")
    t.step(around, "-", gate, "the fence is {} meters long", "{} meters of fence are needed")
    size = t.pick(f"{length} meters long and {width} meters wide", f"{width} meters wide and {length} meters long")
    story = t.pick(
        f"A fence goes around a {place} {size}, but for a gate of {gate} meters.",
        f"A {place} is {size}. A fence goes around it, except for a gate of {gate} meters.",
    )
    return t.fields(f"{story} How {t.pick('long is the fence', 'many meters of fence are there')}?")


# Four steps


def two_goods_change(content: Content, t: Tale) -> Fields:
    n, p, m, q, left = *(content.int(2, 7) for _ in range(4)), content.int(2, 20)
    a, b = t.two(GOODS)
    [(name, he, _)] = t.people(1)
    money = n * p + m * q + left
    first = t.step(n, "*", p, f"the {a} cost {{}}", f"{{}} for the {a}")
    second = t.step(m, "*", q, f"the {b} cost {{}}", f"{{}} for the {b}")
    cost = t.step(first, "+", second, "the total is {}", f"{he} pays {{}}")
    t.step(money, "-", cost, f"{he} has {{}} dollars left", "{} dollars are left")
    buys = f"{n} {a} at {p} dollars each and {m} {b} at {q} dollars each"
    story = t.pick(
        f"{name} has {money} dollars and buys {buys}.", f"{name} buys {buys}. {he.title()} had {money} dollars."
    )
    return t.fields(f"{story} How {t.pick('many dollars are', 'much money is')} left?")


def baking(content: Content, t: Tale) -> Fields:
    trays, each, more, size = content.int(4, 8), content.int(4, 8), content.int(4, 12), content.int(4, 8)
    food = t.pick("cookies", "cakes", "rolls", "pies")
    (a, he, _), (b, _, _) = t.people(2)
    eaten = (trays * each + more) % size or size
    baked = t.step(trays, "*", each, f"{a} bakes {{}} {food}", f"{he} bakes {{}}")
    total = t.step(baked, "+", more, f"with those of {b} it is {{}}", f"{he} has {{}} {food}")
    rest = t.step(total, "-", eaten, "{} are left", f"{{}} {food} are left")
    t.step(rest, "/", size, f"{he} fills {{}} boxes", f"{a} needs {{}} boxes")
    story = t.pick(
        f"{a} bakes {trays} trays of {each} {food} and gets {more} from {b}.",
        f"{a} gets {more} {food} from {b} and bakes {trays} trays of {each}.",
    )
    return t.fields(f"{story} {eaten} {'are' if eaten > 1 else 'is'} eaten. The rest go into boxes of {size}. "
                    f"How many boxes {t.pick(f'does {a} fill', 'are filled', 'are needed')}?")  # fmt: skip


def team_points(content: Content, t: Tale) -> Fields:
    base, more, factor, minutes = content.int(3, 12), content.int(2, 15), content.int(2, 4), content.int(20, 60)
    a, b, c = t.names(3)
    second = t.step(base, "+", more, f"{b} scores {{}}", f"{b} gets {{}} points")
    third = t.step(base, "*", factor, f"{c} scores {{}}", f"{c} gets {{}} points")
    both = t.step(base, "+", second, f"{a} and {b} have {{}}", f"{a} and {b} score {{}}")
    t.step(both, "+", third, "the total is {} points", "the team has {} points")
    story = t.mix(f"{b} scores {more} more than {a}.", f"{c} scores {factor} times as many points as {a}.")
    known = t.pick(f"In a game of {minutes} minutes {a} scores {base} points.",
                  f"{a} scores {base} points in {minutes} minutes.")  # fmt: skip
    return t.fields(f"{known} {story} How many points do the three score {t.pick('together', 'in all')}?")


def saving_goal(content: Content, t: Tale) -> Fields:
    hours, wage, gift, spent = content.int(3, 6), content.int(4, 9), content.int(8, 20), content.int(2, 10)
    need = content.int(3, 25)
    good = t.pick("bike", "phone", "tent", "guitar")
    [(name, he, _)] = t.people(1)
    price = hours * wage + gift - spent + need
    pay = t.step(hours, "*", wage, f"{name} earns {{}} dollars", f"{he} earns {{}}")
    money = t.step(pay, "+", gift, "with the gift it is {}", f"{he} has {{}}")
    rest = t.step(money, "-", spent, f"{he} keeps {{}}", "{} dollars are left")
    t.step(price, "-", rest, f"{he} needs {{}} dollars more", "{} dollars are missing")
    wish = f"{name} wants a {good} for {price} dollars."
    story = t.pick(
        f"{name} works {hours} hours for {wage} dollars an hour, gets {gift} dollars as a gift and spends {spent}.",
        f"{name} gets a gift of {gift} dollars, works {hours} hours for {wage} dollars an hour and spends {spent}.",
    )
    return t.fields(f"{t.mix(wish, story)} How many more dollars does {name} need?")


def free_seats(content: Content, t: Tale) -> Fields:
    rows, each, start = content.int(8, 12), content.int(4, 6), content.int(12, 22)
    off, on = content.int(2, 9), content.int(2, 8)
    bus = t.pick("bus", "train", "boat")
    seats = t.step(rows, "*", each, f"the {bus} has {{}} seats", "there are {} seats")
    stay = t.step(start, "-", off, "{} people stay", "{} people are left")
    people = t.step(stay, "+", on, "now there are {} people", "{} people are on it")
    t.step(seats, "-", people, "{} seats are free", "there are {} free seats")
    move = t.pick(f"{off} get off and {on} get on", f"{on} get on and {off} get off")
    story = t.pick(f"A {bus} has {rows} rows of {each} seats and {start} people in it. Then {move}.",
                  f"{start} people are in a {bus} with {rows} rows of {each} seats. Then {move}.")  # fmt: skip
    return t.fields(f"{story} How many seats are {t.pick('free', 'empty')}{t.pick('', ' now')}?")


def book_shelves(content: Content, t: Tale) -> Fields:
    n, p, m, q, lent = *(content.int(3, 8) for _ in range(4)), content.int(2, 12)
    room = t.pick("A class", "A school", "A shop")
    first = t.step(n, "*", p, "the top shelves hold {}", "{} books are at the top")
    second = t.step(m, "*", q, "the low shelves hold {}", "{} books are below")
    total = t.step(first, "+", second, "there are {} books", "that makes {} books")
    t.step(total, "-", lent, "{} books are left", "{} books are still there")
    gone = t.pick(f"{lent} books are lent out.", f"{lent} of the books are taken.")
    shelves = (f"{n} top shelves with {p} books each", f"{m} low shelves with {q} books each")
    story = t.pick(f"{room} has {shelves[0]} and {shelves[1]}.", f"{room} has {shelves[1]} and {shelves[0]}.")
    return t.fields(f"{story} {gone} How many books are {t.pick('left', 'still there')}?")


def family_trip(content: Content, t: Tale) -> Fields:
    ticket, lunch, count = content.int(2, 6), content.int(2, 6), content.int(3, 8)
    toys, left = content.int(2, 12), content.int(2, 15)
    place = t.pick("zoo", "museum", "park", "show")
    money = (ticket + lunch) * count + toys + left
    each = t.step(ticket, "+", lunch, "each person costs {}", "one person pays {}")
    cost = t.step(each, "*", count, f"all {count} cost {{}}", f"{count} people pay {{}}")
    rest = t.step(money, "-", cost, "{} dollars are left", "they keep {}")
    t.step(rest, "-", toys, "after the toys {} dollars are left", "at the end they have {} dollars")
    costs = t.pick(f"a ticket costs {ticket} dollars and a lunch {lunch}",
                  f"a lunch costs {lunch} dollars and a ticket {ticket}")  # fmt: skip
    story = t.mix(f"A family of {count} has {money} dollars for the {place}.", f"At the {place} {costs}.")
    return t.fields(f"{story} Each person needs both. They also buy toys for {toys} dollars. How much is left?")


KINDS = (
    collect_more, give_away, compare_scores, full_boxes, share_equally, ages, trip,
    shop_change, bus_stop, bags_and_loose, perimeter, times_as_many, share_rest, pages_left,
    two_goods, savings, family_ages, three_days, work_hours, cards_shared, fence,
    two_goods_change, baking, team_points, saving_goal, free_seats, book_shelves, family_trip,
)  # fmt: skip
TEMPLATES = templates(Tale, KINDS)
