"""Writes the documents of the pocket tasks: `python -m specbench.tasks.pocket.documents [--out FOLDER]`.

Every family gets `<family>_test.jsonl`, drawn from the test split, and `<family>_train.jsonl`, few-shot examples from
the train split. The same code always writes the same bytes.
"""

import argparse
import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from specbench.tasks.pocket.corpus import FAMILIES, prompt_and_completion
from specbench.tasks.pocket.problems import Problem, problems

FOLDER = Path(__file__).parents[3] / "suites" / "tasks" / "pocket"
# How many documents a file has, and the seeds that they are drawn with: later ones come after those that were there.
PARTS = {"test": ((150, 2024), (150, 2025)), "train": ((16, 2024),)}
CALIBRATION, VALIDATION = 2000, 280
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
    """Generate documents that are not bundled: `calibration` ones, and `validation` ones for choosing settings.

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


def as_jsonl(drawn: list[Problem]) -> str:
    """One JSON object a line: the fields of the problem and the name of its template."""
    rows = ({"template": problem.template, **problem.fields} for problem in drawn)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write(folder: Path = FOLDER) -> list[Path]:
    """Write all files to `folder`, replacing existing ones; returns their paths."""
    paths = []
    for family in FAMILIES:
        for split in PARTS:
            path = folder / f"{family}_{split}.jsonl"
            path.write_bytes(as_jsonl(bundled(family, split)).encode())
            paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the documents of the pocket tasks.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to")
    for path in write(parser.parse_args().out):
        print(path)


if __name__ == "__main__":
    main()
