"""The documents of the pocket tasks, for lm-eval's `!function`."""

import gzip
import json
from pathlib import Path

import datasets

from specbench.config import DATA


class Splits(dict[str, datasets.Dataset]):
    """Bundled documents by split, held in memory: they need no hub and no cache, in any working folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __missing__(self, split: str) -> datasets.Dataset:
        name = f"{self.name}_{split}.jsonl"
        if (path := Path(__file__).with_name(name)).is_file():
            text = path.read_bytes()
        elif (packed := DATA / "tasks" / "pocket" / f"{name}.gz").is_file():
            text = gzip.decompress(packed.read_bytes())
        else:
            raise KeyError(split)
        self[split] = datasets.Dataset.from_list([json.loads(line) for line in text.decode().splitlines()])
        return self[split]


def load(family: str, **_: object) -> Splits:
    return Splits(family)


def load_long(kind: str, tokens: int, **_: object) -> Splits:
    return Splits(f"long_{kind}_{tokens}")
