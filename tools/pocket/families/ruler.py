"""Needles in haystacks of growing length, in the manner of RULER's retrieval tasks (Hsieh et al. 2024, arXiv 2404.06654).

A text of everyday sentences hides needles such as `The magic number of the gray otter is 4821.`; a question at its end
asks for one or two of them. Four kinds of needles in four lengths make sixteen templates. Their names end with the length,
about the number of tokens that prompt and answer have together with the pocket tokenizer. Fields: `context`, `question`,
`answer`, and `values`, a JSON list of the values that an answer must contain. The needles are a problem's content; the
sentences around them and their places are its wording.

In sentences, `[one|two]` marks wordings that mean the same, or fit as well, and `{slot}` a word of `SLOTS`.
"""

import json
import random
import re
from collections.abc import Callable
from functools import partial

from pocket.families.cnndm import (
    CLOTHES,
    COLORS,
    DAYS,
    FIRST_NAMES,
    FOODS,
    JOBS,
    MONTHS,
    RIVERS,
    TOWNS,
    expand,
)
from pocket.problems import Content, Fields, Template, table

LENGTHS = (128, 256, 512, 900)  # tokens of a prompt with its answer
FIXED, CHARACTERS = 14, 3  # tokens that every prompt has around its text; characters a token, digits and names together
ADJECTIVES = table("black white brown red green blue gray pink old young small wild")
ANIMALS = table("otter fox goat cat dog horse owl bear wolf hare duck swan crab frog deer lion")
WORDS = table("""
anchor arrow basket bell blanket bottle button candle carpet castle cherry circle cloud comet copper cotton crown
desert diamond drum engine feather flag flute forest garden ginger glove hammer helmet hazel island jungle kettle
ladder lantern lemon marble mirror mountain needle orange pencil pepper piano pillow planet pocket quartz ribbon rocket
saddle silver spider temple thunder tunnel velvet violin walnut window winter zebra
""")
SLOTS = {
    "name": FIRST_NAMES,
    "town": TOWNS,
    "river": RIVERS,
    "day": DAYS,
    "month": MONTHS,
    "food": FOODS,
    "job": JOBS,
    "color": COLORS,
    "clothes": CLOTHES,
    "place": table("school church library museum hotel theater hospital"),
    "vehicle": table("truck van bus taxi"),
    "count": table("2 3 4 5 6 7 8 9 10 11 12"),
}
FILLERS = table(
    """
{name} [drove|took] the {color} {vehicle} to {town} on {day}.
The {place} in {town} [opens|closes] at {count} on {day}.
{name} is a {job} and [lives|works] near the {place}.
There was [fresh|good|cheap] {food} at the market in {town}.
The water of the {river} was [low|high|cold] in {month}.
In {month} the days in {town} are [long|short|warm|cold].
{name} met a {job} [behind|in front of] the {place}.
A {job} from {town} [found|lost|sold] a {color} {clothes}.
The train to {town} was {count} minutes late.
{name} wrote a [long|short|kind] letter to the {job}.
It rained in {town} [all day|all night|until noon].
The children [played|waited] behind the {place} until {count}.
{name} [ate|bought|made] {food} and went home.
Nobody knew why the {color} {vehicle} stood near the {place}.
Most people in {town} work [on farms|in shops|at the paper mill].
The road from {town} to the [sea|hills] is [closed|open] in {month}.
{name} asked the {job} for a {color} {clothes}.
On {day} the {job} had {count} [visitors|letters|calls].
The wind [came from the north|turned|grew stronger] before noon.
The [roof|door] of the {place} is {color} now.
Every {day} {name} walks along the {river}.
The {job} [counted|packed|carried] {count} boxes of {food}.
Old maps show a [bridge|mill|road] near {town}.
{name} will [visit|leave] {town} in {month}.
The {place} in {town} needs a new [roof|door|clock].
Some {job}s in {town} [start|stop] work at {count}.
{name} put the {color} {clothes} on the table.
The best {food} comes from {town}.
A [thin|thick] fog [lay|hung] over the {river}.
{name} forgot the {food} at the {place}.
The {vehicle} to {town} [leaves from|stops at] the {place}.
[Little|Nothing|Much] has changed in {town} since {month}.
The {job} [sang|laughed|slept] while {name} cooked.
Two {job}s [painted|cleaned] the {place} in {month}.
There are {count} [steps|trees|benches] in front of the {place}.
{name} likes {food}, but the {job} does not.
""".strip(),
    "\n",
)


def filler(wording: random.Random) -> str:
    """One everyday sentence with its slots filled."""
    return re.sub(r"\{(\w+)\}", lambda slot: wording.choice(SLOTS[slot[1]]), expand(wording.choice(FILLERS), wording))


def keys(content: Content, count: int) -> list[str]:
    """Owners of needles; no adjective or animal occurs twice."""
    pairs = zip(content.sample(ADJECTIVES, count), content.sample(ANIMALS, count), strict=True)
    return [f"the {adjective} {animal}" for adjective, animal in pairs]


def numbers(content: Content, count: int) -> list[str]:
    """Different numbers of four digits."""
    return [str(number) for number in content.sample(range(1000, 10_000), count)]


def needle(noun: str, key: str, value: str) -> str:
    return f"The magic {noun} of {key} is {value}."


def haystack(wording: random.Random, length: int, needles: dict[str, str], asked: int, question: str) -> Fields:
    """Fields of a text of `length` tokens with `needles` (value by sentence); the question is about the first `asked`."""
    answer = " ".join(list(needles)[:asked])
    room = CHARACTERS * (length - FIXED) - len(question) - len(answer) - sum(len(sentence) + 1 for sentence in needles)
    sentences: list[str] = []
    while (room := room - len(sentence := filler(wording)) - 1) >= 0:
        sentences.append(sentence)
    for needle_sentence in wording.sample(list(needles), len(needles)):
        sentences.insert(wording.randint(0, len(sentences)), needle_sentence)
    values = json.dumps(list(needles.values())[:asked])
    return {"context": " ".join(sentences), "question": question, "answer": answer, "values": values}


def numbered(content: Content, wording: random.Random, length: int, owners: int, asked: int) -> Fields:
    """The numbers of the first `asked` of some animals."""
    animals, values = keys(content, owners), numbers(content, owners)
    needles = {needle("number", key, value): value for key, value in zip(animals, values, strict=True)}
    question = "What are the magic numbers of {} and {}?" if asked == 2 else "What is the magic number of {}?"
    return haystack(wording, length, needles, asked, question.format(*animals))


def word(content: Content, wording: random.Random, length: int) -> Fields:
    """One word."""
    [key], value = keys(content, 1), content.choice(WORDS)
    return haystack(wording, length, {needle("word", key, value): value}, 1, f"What is the magic word of {key}?")


KINDS: dict[str, Callable[[Content, random.Random, int], Fields]] = {
    "single": partial(numbered, owners=1, asked=1),
    "multikey": partial(numbered, owners=4, asked=1),
    "multiquery": partial(numbered, owners=3, asked=2),
    "word": word,
}


def at(kind: str, length: int) -> Template:
    """The template of a kind at one length, named after both."""

    def template(content: Content, wording: random.Random) -> Fields:
        return KINDS[kind](content, wording, length)

    template.__name__ = f"{kind}_{length}"
    return template


TEMPLATES: tuple[Template, ...] = tuple(at(kind, length) for length in LENGTHS for kind in KINDS)
