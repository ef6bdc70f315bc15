"""Data and scoring of the pocket tasks, for lm-eval's `!function`."""

import json
from pathlib import Path

import datasets

from specbench.tasks.pocket import long
from specbench.tasks.pocket.documents import generated
from specbench.tasks.sandbox import passes
from specbench.tasks.sandbox.unit_tests import of_prompt


class LongSplits(dict[str, datasets.Dataset]):
    """Long documents by split, generated on first use."""

    def __init__(self, kind: str, tokens: int) -> None:
        self.kind, self.tokens = kind, tokens

    def __missing__(self, split: str) -> datasets.Dataset:
        self[split] = datasets.Dataset.from_list(long.documents(self.kind, split, self.tokens))
        return self[split]


class Splits(dict[str, datasets.Dataset]):
    """Documents of a family by split, held in memory: they need no hub and no cache, in any working folder.

    `train` and `test` are bundled; `calibration` and `validation` are generated on first use.
    """

    def __init__(self, family: str) -> None:
        self.family = family

    def __missing__(self, split: str) -> datasets.Dataset:
        if split in ("train", "test"):
            path = Path(__file__).parent / f"{self.family}_{split}.jsonl"
            rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        else:
            rows = generated(self.family, split)
        self[split] = datasets.Dataset.from_list(rows)
        return self[split]


def load(family: str, **_: object) -> Splits:
    return Splits(family)


def load_long(kind: str, tokens: int, **_: object) -> LongSplits:
    return LongSplits(kind, tokens)


def score_code(doc: dict[str, str], results: list[str]) -> dict[str, float]:
    """`pass@1`: 1.0 if the completed function passes its tests in the sandbox, otherwise 0.0."""
    tests = of_prompt(doc["prompt"], doc["test"], doc["entry_point"])
    return {"pass@1": float(passes(doc["prompt"] + results[0], tests).passed)}
