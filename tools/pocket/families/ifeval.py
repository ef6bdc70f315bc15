"""Short texts under constraints that a program can check, in the manner of IFEval (Zhou et al. 2023, arXiv 2311.07911).

Every prompt names the content of a text (things, or who did what) and puts it under one to three constraints: all lower
case, a number of bullet points, a given ending, JSON with given keys. Fields: `prompt`; `answer`, one text that obeys;
and `constraints`, a JSON list of objects with an `id` and the arguments of that constraint. The ids are IFEval's own
where it has the constraint. One of them always checks for the content (by keywords or a frequency), so no text that
ignores the prompt obeys. suites/tasks/pocket/ifeval_utils.py checks them.

In prompts, `[one|two]` marks wordings that mean the same.
"""

import functools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from pocket.families.cnndm import DAYS, NOUNS, TITLES, expand
from pocket.problems import Content, Fields, Template, table

NAMES = table("Anna Ben Emma Leo Lily Max Mia Sam Sara Tom Karen Peter Ivan Ines Hugo Maria")
VERBS = table("sold found bought lost took saved drew made")
COLORS = table("black white brown red green blue gray pink")
OBJECTS = table("bag bike boat book bottle box cup film gift hat lamp map shirt ticket truck van")
TOWNS = table("Marlow Coldwater Dunmore Bridgeport Clayton Edgewood Hadley Ironwood Milford Monroe Rosewood Stanton")
THINGS = table("""
apples bags balls bands beds bikes boats books bottles boxes cakes cards coins cookies cups eggs gifts hats lamps maps
marbles pens pies plates plums roses shelves shells stamps stickers tickets toys
""")
SHORT_THINGS = table("bags balls beds boats books cakes cards coins cups eggs hats maps pens pies plums toys")
FIRST_WORDS = table("Yesterday Today Once Then Finally Luckily Sadly Suddenly Recently")
ENDINGS = table(
    "That is all.,This is the end.,Thank you all.,See you soon.,Have a good day.,More will follow.,Call me now.,"
    "What a day!,What comes next?,Who can help?",
    ",",
)
WE = table("We need,We want,We have,They need,They want,They have,You need,You get", ",")
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}
Constraint = dict[str, object]


@dataclass(frozen=True)
class Event:
    """A person, what they did, and to which object."""

    name: str
    verb: str
    color: str
    thing: str

    @property
    def clause(self) -> str:
        return f"{self.name} {self.verb} a {self.color} {self.thing}"

    @property
    def words(self) -> tuple[str, ...]:
        return (self.name, self.verb, self.color, self.thing)


def events(content: Content, count: int) -> list[Event]:
    """Events that share no word."""
    columns = (content.sample(column, count) for column in (NAMES, VERBS, COLORS, OBJECTS))
    return [Event(*row) for row in zip(*columns, strict=True)]


def setting(content: Content) -> tuple[str, str]:
    """A place or a time as it ends a sentence, and its keyword."""
    if content.choice((True, False)):
        day = content.choice(DAYS)
        return f"on {day}", day
    town = content.choice(TOWNS)
    return f"in {town}", town


def things(content: Content, low: int, high: int) -> list[str]:
    return content.sample(THINGS, content.int(low, high))


def series(words: list[str]) -> str:
    """`one, two and three`."""
    return ", ".join(words[:-1]) + " and " + words[-1]


def fields(prompt: str, answer: str, *constraints: Constraint) -> Fields:
    return {"prompt": prompt, "constraints": json.dumps(constraints), "answer": answer}


def worded(kind: Callable[[Content], Fields]) -> Template:
    """The template of a kind of instruction, whose prompt is worded again for each problem."""

    @functools.wraps(kind)
    def template(content: Content, wording: random.Random) -> Fields:
        asked = kind(content)
        return {**asked, "prompt": expand(asked["prompt"], wording)}

    return template


def has(*words: str) -> Constraint:
    return {"id": "keywords:existence", "keywords": words}


def without(*words: str) -> Constraint:
    return {"id": "keywords:forbidden_words", "forbidden_words": words}


def exactly(times: int, word: str) -> Constraint:
    return {"id": "keywords:frequency", "keyword": word, "frequency": times}


def one_argument(name: str, key: str) -> Callable[[object], Constraint]:
    return lambda value: {"id": name, key: value}


starts = one_argument("startend:start_checker", "start_phrase")
ends = one_argument("startend:end_checker", "end_phrase")
sentence_count = one_argument("length_constraints:number_sentences", "num_sentences")
bullet_count = one_argument("detectable_format:number_bullet_lists", "num_bullets")
item_count = one_argument("detectable_format:comma_separated_items", "num_items")
titled = one_argument("detectable_format:title", "title")
NO_COMMA: Constraint = {"id": "punctuation:no_comma"}
QUOTED: Constraint = {"id": "startend:quotation"}
LOWER_CASE: Constraint = {"id": "change_case:english_lowercase"}
CAPITALS: Constraint = {"id": "change_case:english_capital"}
POSTSCRIPT: Constraint = {"id": "detectable_content:postscript", "postscript_marker": "P.S."}


def lower_case(content: Content) -> Fields:
    [event], (where, place) = events(content, 1), setting(content)
    text = f"{event.clause} {where}."
    return fields(
        f"[Write|Repeat] this sentence in [lower case letters only|all lower case letters]: {text}",
        text.lower(),
        LOWER_CASE,
        has(*event.words, place),
    )


def capitals(content: Content) -> Fields:
    words = content.sample(SHORT_THINGS, content.int(2, 4))
    return fields(
        f"[Name|List] these things in [capital letters only|all capital letters], with commas between them: "
        f"{series(words)}.",
        ", ".join(words).upper(),
        CAPITALS,
        item_count(len(words)),
        has(*words),
    )


def bullets(content: Content) -> Fields:
    words = things(content, 2, 5)
    return fields(
        f"[Make|Write] a list of exactly {NUMBERS[len(words)]} bullet points that start with *, "
        f"[one for each of these things|one for each thing]: {series(words)}.",
        "\n".join(f"* {word}" for word in words),
        bullet_count(len(words)),
        has(*words),
    )


def first_items(content: Content) -> Fields:
    words = things(content, 3, 5)
    count = content.int(2, len(words) - 1)
    return fields(
        f"[Name|List] only the first {NUMBERS[count]} of these things, as bullet points that start with *: "
        f"{series(words)}.",
        "\n".join(f"* {word}" for word in words[:count]),
        bullet_count(count),
        without(*words[count:]),
        has(*words[:count]),
    )


def leave_out(content: Content) -> Fields:
    words = things(content, 4, 5)
    left = content.choice(words)
    kept = [word for word in words if word != left]
    return fields(
        f"[Name|List] these things with commas between them, but [leave out|do not use] the word {left}: "
        f"{series(words)}.",
        ", ".join(kept),
        without(left),
        item_count(len(kept)),
        has(*kept),
    )


def sentences(content: Content) -> Fields:
    happened = events(content, content.int(2, 3))
    count = content.choice((1, len(happened)))
    texts = [event.clause for event in happened]
    return fields(
        f"[Tell this|Write this] in exactly {NUMBERS[count]} sentence{'s' * (count > 1)}: {'; '.join(texts)}.",
        f"{series(texts)}." if count == 1 else " ".join(f"{text}." for text in texts),
        sentence_count(count),
        has(*(word for event in happened for word in event.words)),
    )


def first_word(content: Content) -> Fields:
    [event], town, first = events(content, 1), content.choice(TOWNS), content.choice(FIRST_WORDS)
    return fields(
        f"[Start with the word|Begin with the word] {first} and use no commas: {event.clause} in {town}.",
        f"{first} {event.clause} in {town}.",
        starts(first),
        NO_COMMA,
        has(*event.words, town),
    )


def end_phrase(content: Content) -> Fields:
    [event], (where, place), ending = events(content, 1), setting(content), content.choice(ENDINGS)
    return fields(
        f'[Tell|Write] that {event.clause} {where}, and [end with|finish with] the words "{ending}"',
        f"{event.clause} {where}. {ending}",
        ends(ending),
        has(*event.words, place),
    )


def no_commas(content: Content) -> Fields:
    words, opening = things(content, 3, 4), content.choice(WE)
    return fields(
        f'[Write|Make] one sentence without [commas|any commas] that starts with "{opening}" and names '
        f"[these things|all of these]: {', '.join(words)}",
        f"{opening} {' and '.join(words)}.",
        starts(opening),
        sentence_count(1),
        NO_COMMA,
        has(*words),
    )


def quotation(content: Content) -> Fields:
    both = events(content, 2)
    asked, other = both if content.choice((True, False)) else reversed(both)
    return fields(
        f"{both[0].clause}. {both[1].clause}. [Repeat|Write] only the sentence about {asked.name}, "
        f"[wrapped in|between] double quotes.",
        f'"{asked.clause}."',
        QUOTED,
        without(other.name, other.thing),
        has(*asked.words),
    )


def title(content: Content) -> Fields:
    [event], name = events(content, 1), f"{content.choice(TITLES)} {content.choice(NOUNS)}"
    return fields(
        f"[Tell|Write] that {event.clause}, under the title {name}, [which stands|set] between << and >>.",
        f"<<{name}>>\n{event.clause}.",
        titled(name),
        has(*event.words),
    )


def repeat_words(content: Content) -> Fields:
    one, other = content.sample(THINGS, 2)
    times, more = content.int(2, 5), content.int(2, 5)
    return fields(
        f"[Write|Repeat] the word {one} exactly {NUMBERS[times]} times, then the word {other} "
        f"exactly {NUMBERS[more]} times.",
        " ".join([one] * times + [other] * more),
        exactly(times, one),
        exactly(more, other),
    )


def json_keys(content: Content) -> Fields:
    [event], day = events(content, 1), content.choice(DAYS)
    known = {"name": event.name, "color": event.color, "thing": event.thing, "day": day}
    keys = content.sample(list(known), content.int(2, 3))
    values = {key: known[key] for key in keys}
    return fields(
        f"[Answer in|Write] JSON with the keys {series(keys)}: {event.clause} on {day}.",
        json.dumps(values),
        {"id": "detectable_format:json_format", "keys": keys},
        has(*values.values()),
    )


def postscript(content: Content) -> Fields:
    event, later = events(content, 2)
    return fields(
        f"[Tell|Write] that {event.clause}, and add a postscript that starts with P.S. and [says|tells] that {later.clause}.",
        f"{event.clause}.\nP.S. {later.clause}.",
        POSTSCRIPT,
        has(*event.words, *later.words),
    )


def letter(content: Content) -> Fields:
    [event] = events(content, 1)
    reader, writer = content.sample([name for name in NAMES if name != event.name], 2)
    return fields(
        f'Write a letter that [starts|begins] with "Dear {reader}" and ends with "Yours, {writer}", '
        f"[and tell|and say] that {event.clause}.",
        f"Dear {reader}\n{event.clause}.\nYours, {writer}",
        starts(f"Dear {reader}"),
        ends(f"Yours, {writer}"),
        has(*event.words),
    )


def report(content: Content) -> Fields:
    words, ending = things(content, 2, 3), content.choice(ENDINGS)
    name = f"{content.choice(TITLES)} {content.choice(NOUNS)}"
    return fields(
        f"[Write|Make] the title {name} between << and >>, {NUMBERS[len(words)]} bullet points that start with * for "
        f'{series(words)}, and the words "{ending}" at the end.',
        f"<<{name}>>\n" + "".join(f"* {word}\n" for word in words) + ending,
        titled(name),
        bullet_count(len(words)),
        ends(ending),
        has(*words),
    )


KINDS = (
    *(lower_case, capitals, bullets, first_items, leave_out, sentences, first_word, end_phrase, no_commas),
    *(quotation, title, repeat_words, json_keys, postscript, letter, report),
)
TEMPLATES: tuple[Template, ...] = tuple(map(worded, KINDS))
