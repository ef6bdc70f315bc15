"""Long documents: a problem of a bundled family, and around it what makes its prompt long.

- needles: texts of everyday sentences, as those of `families.ruler`, but longer;
- news: a story, and after it others of the same day, which the highlights are not about;
- code: a file of finished functions, and at its end the beginning of one more.

The problem that is asked is of the split; stories and functions around it are of the training split, as examples in a
prompt are. The same code always makes the same documents; they are made when they are needed.
"""

import itertools
import random
from collections.abc import Callable, Iterator

from pocket.families import cnndm, humaneval, ruler
from pocket.problems import Content, Fields, Problem, problems, split_of

COUNTS = {"test": 150, "train": 16, "calibration": 150}
SEED = 2026
CHARACTERS = {"news": 3.2, "code": 2.9}  # a token, measured on documents of 2,000 tokens
OTHERS = "[In other news|Elsewhere|Also today|Meanwhile]"


def documents(kind: str, split: str, tokens: int) -> list[Fields]:
    """The documents of a kind and split whose prompt with its answer has about so many tokens.

    Raises KeyError for an unknown kind or split.
    """
    count = COUNTS[split]
    make = KINDS[kind]
    documents: list[Fields] = []
    seen: set[tuple[str, str]] = set()
    for problem, fields in make(split, tokens):
        if (problem.template, problem.content) not in seen:
            seen.add((problem.template, problem.content))
            documents.append({"template": problem.template, **fields})
        if len(documents) == count:
            break
    random.Random(f"long/{kind}/{split}/{SEED}").shuffle(documents)
    return documents


Drawn = Iterator[tuple[Problem, Fields]]


def needles(split: str, tokens: int) -> Drawn:
    """Four kinds of needles, in turn. The split is of the needles alone, whatever the length."""
    rng = random.Random(f"long/needles/{split}/{SEED}")
    for kind in itertools.cycle(ruler.KINDS):
        template, make = f"{kind}_long", ruler.KINDS[kind]
        while True:
            seed = rng.getrandbits(64)
            content = Content(random.Random(seed))
            make(content, random.Random(0), 0)  # a short text, to see which needles these are
            if split_of(template, repr(content.drawn)) == split:
                break
        fields = make(Content(random.Random(seed)), random.Random(rng.getrandbits(64)), tokens)
        yield Problem("ruler", template, repr(content.drawn), fields), fields


def news(split: str, tokens: int) -> Drawn:
    """A story first, and then others of other templates, each with a word that another one begins."""
    others = problems("cnndm", cnndm.TEMPLATES, "train", SEED + 1)
    wording = random.Random(f"long/news/{split}/{SEED}")
    for problem in problems("cnndm", cnndm.TEMPLATES, split, SEED):
        room = CHARACTERS["news"] * tokens - len(problem.fields["article"]) - len(problem.fields["highlights"])
        parts = [problem.fields["article"]]
        while room > 0:
            other = next(others)
            if other.template != problem.template:
                parts.append(f"{cnndm.expand(OTHERS, wording)}: {other.fields['article']}")
                room -= len(parts[-1]) + 1
        yield problem, problem.fields | {"article": " ".join(parts)}


def code(split: str, tokens: int) -> Drawn:
    """A file of finished functions, and at its end the beginning of the one that is asked; no name occurs twice."""
    others = problems("humaneval", humaneval.TEMPLATES, "train", SEED + 1)
    for problem in problems("humaneval", humaneval.TEMPLATES, split, SEED):
        asked, names = problem.fields["prompt"], {problem.fields["entry_point"]}
        room = CHARACTERS["code"] * tokens - len(asked) - len(problem.fields["canonical_solution"])
        parts: list[str] = []
        while room > 0:
            fields = next(others).fields
            if fields["entry_point"] not in names:
                names.add(fields["entry_point"])
                parts.append(fields["prompt"] + fields["canonical_solution"].rstrip("\n"))
                room -= len(parts[-1]) + 3
        yield problem, problem.fields | {"prompt": "\n\n\n".join([*parts, asked])}


KINDS: dict[str, Callable[[str, int], Drawn]] = {"needles": needles, "news": news, "code": code}
