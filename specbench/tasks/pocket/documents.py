"""Writes the documents of the pocket tasks: `python -m specbench.tasks.pocket.documents [--out FOLDER]`.

Every family gets `<family>_test.jsonl`, drawn from the test split, and `<family>_train.jsonl`, few-shot examples from
the train split. The same code always writes the same bytes.
"""

import argparse
import itertools
import json
import random
from collections import Counter
from pathlib import Path

from specbench.tasks.pocket.corpus import FAMILIES, prompt_and_completion
from specbench.tasks.pocket.problems import Problem, problems

FOLDER = Path(__file__).parents[3] / "suites" / "tasks" / "pocket"
COUNTS = {"test": 150, "train": 16}
CALIBRATION, VALIDATION = 2000, 280
SEED = 2024
MOST_DRAWS = 100_000


def draw(family: str, split: str, count: int, seed: int = SEED) -> list[Problem]:
    """Draw `count` problems, no two with the same content or prompt, spread over the templates as evenly as possible.

    `seed` decides the order, and which templates have one problem more than others, so any first few problems are a
    fair sample. Raises RuntimeError if a template has too few different problems.
    """
    rng = random.Random(f"documents/{family}/{split}/{seed}")
    names = [template.__name__ for template in FAMILIES[family]]
    rng.shuffle(names)
    wanted = Counter(names[index % len(names)] for index in range(count))
    drawn: list[Problem] = []
    seen: set[object] = set()
    for attempt, problem in enumerate(problems(family, FAMILIES[family], split, seed)):
        if len(drawn) == count:
            break
        if attempt == MOST_DRAWS:
            raise RuntimeError(f"{family}: no {count} different {split} problems; still wanted: {+wanted}")
        marks = {(problem.template, problem.content), prompt_and_completion(family, problem.fields)[0]}
        if wanted[problem.template] and not marks & seen:
            wanted[problem.template] -= 1
            seen |= marks
            drawn.append(problem)
    rng.shuffle(drawn)
    return drawn


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
        for split, count in COUNTS.items():
            path = folder / f"{family}_{split}.jsonl"
            path.write_bytes(as_jsonl(draw(family, split, count)).encode())
            paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the documents of the pocket tasks.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to")
    for path in write(parser.parse_args().out):
        print(path)


if __name__ == "__main__":
    main()
