"""Writes the documents of the pocket tasks: `PYTHONPATH=tools python -m pocket.documents [--out FOLDER]`.

Every family gets `<family>_test.jsonl`, drawn from the test split, and `<family>_train.jsonl`, few-shot examples from
the train split. Documents to learn from and to choose settings by, and long ones, are more: `.jsonl.gz`. The same code
always writes the same lines.
"""

import argparse
import gzip
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pocket import long
from pocket.corpus import FAMILIES, prompt_and_completion
from pocket.problems import Problem, problems

FOLDER = Path(__file__).parents[2] / "suites" / "tasks" / "pocket"
# How many documents a file has, and the seeds that they are drawn with: later ones come after those that were there.
PARTS = {"test": ((150, 2024), (150, 2025)), "train": ((16, 2024),)}
CALIBRATION, VALIDATION = 2000, 280
LONG = (2000, 4000)  # tokens of the long documents
MOST_DRAWS = 100_000


def bundled(family: str, split: str) -> list[Problem]:
    """The problems of a bundled file, no two with the same content or prompt."""
    problems: list[Problem] = []
    for count, seed in PARTS[split]:
        problems += draw(family, split, count, seed, problems)
    return problems


def draw(family: str, split: str, count: int, seed: int = 2024, others: Sequence[Problem] = ()) -> list[Problem]:
    """Draw `count` problems, no two with the same content or prompt, spread over the templates as evenly as possible.

    `seed` decides the order, and which templates have one problem more than others, so any first few problems are a
    fair sample. None is one of `others`; with them the templates are spread evenly. Raises RuntimeError if a template
    has too few different problems.
    """
    rng = random.Random(f"documents/{family}/{split}/{seed}")
    names = [template.__name__ for template in FAMILIES[family]]
    rng.shuffle(names)
    names.sort(key=Counter(problem.template for problem in others).__getitem__)  # those with fewer problems first
    wanted = Counter(names[index % len(names)] for index in range(count))
    drawn: list[Problem] = []
    seen = {mark for problem in others for mark in _marks(problem)}
    for attempt, problem in enumerate(problems(family, FAMILIES[family], split, seed)):
        if len(drawn) == count:
            break
        if attempt == MOST_DRAWS:
            raise RuntimeError(f"{family}: no {count} different {split} problems; still wanted: {+wanted}")
        marks = _marks(problem)
        if wanted[problem.template] and not marks & seen:
            wanted[problem.template] -= 1
            seen |= marks
            drawn.append(problem)
    rng.shuffle(drawn)
    return drawn


def _marks(problem: Problem) -> set[object]:
    """What a problem may share with no other: its content and its prompt."""
    return {(problem.template, problem.content), prompt_and_completion(problem.family, problem.fields)[0]}


def generated(family: str, split: str) -> list[dict[str, str]]:
    """The documents of a family to learn from, `calibration`, and those to choose settings by, `validation`.

    Both come from the calibration split and share no content. Raises KeyError for another split.
    """
    count = {"calibration": CALIBRATION, "validation": VALIDATION}[split]
    source = problems(family, FAMILIES[family], "calibration", seed=0)
    drawn = list(itertools.islice(source, CALIBRATION))
    if split == "validation":
        seen = {(problem.template, problem.content) for problem in drawn}
        drawn = []
        for problem in itertools.islice(problems(family, FAMILIES[family], "calibration", seed=1), MOST_DRAWS):
            if (problem.template, problem.content) not in seen:
                seen.add((problem.template, problem.content))
                drawn.append(problem)
            if len(drawn) == count:
                break
        random.Random(0).shuffle(drawn)
    return [{"template": problem.template, **problem.fields} for problem in drawn]


def as_jsonl(rows: Iterable[dict[str, str]]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def written() -> Iterator[tuple[str, Callable[[], list[dict[str, str]]]]]:
    """The name of each file, and what makes its rows: the fields of a problem and the name of its template."""
    for family in FAMILIES:
        for split in PARTS:
            yield f"{family}_{split}.jsonl", partial(rows_of, family, split)
        for split in ("calibration", "validation"):
            yield f"{family}_{split}.jsonl.gz", partial(generated, family, split)
    for kind, tokens, split in itertools.product(long.KINDS, LONG, long.COUNTS):
        yield f"long_{kind}_{tokens}_{split}.jsonl.gz", partial(long.documents, kind, split, tokens)


def rows_of(family: str, split: str) -> list[dict[str, str]]:
    return [{"template": problem.template, **problem.fields} for problem in bundled(family, split)]


def write(folder: Path = FOLDER) -> list[Path]:
    """Write all files to `folder`, replacing existing ones; returns their paths."""
    paths = []
    for name, rows in written():
        text = as_jsonl(rows()).encode()
        path = folder / name
        path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the documents of the pocket tasks.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to")
    for path in write(parser.parse_args().out):
        print(path)


if __name__ == "__main__":
    main()
