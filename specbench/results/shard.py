"""A shard of a run: some of its documents, decoded in a folder of their own; `specbench join` makes one run."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.base.errors import UserError

SHARDS = "shards"  # the folder of a run that its shards are in


@dataclass(frozen=True)
class Shard:
    """Which part of a run, counted from 1; the plan decides which documents that are (measure/shards.py)."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"shard {self.number} of {self.of}"

    def folder(self, run: Path) -> Path:
        return attempt_folder(run, self.number, 1)

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """`2/5` as the second of five. Raises UserError for anything else."""
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f"--shard {text}: write K/N, with K from 1 to N, such as 2/5")
        return cls(int(match[1]), int(match[2]))


def attempt_folder(run: Path, number: int, attempt: int) -> Path:
    """Where a shard is decoded; a further attempt has a folder of its own if a cut-off worker may still write."""
    return run / SHARDS / (f"{number}.{attempt}" if attempt > 1 else str(number))


def attempts(run: Path) -> dict[int, list[int]]:
    """The attempts at each shard that have a folder in `run`, in order, by the shard's number, in order."""
    numbers: dict[int, list[int]] = {}
    for path in (run / SHARDS).iterdir() if (run / SHARDS).is_dir() else []:
        if match := re.fullmatch(r"([0-9]{1,6})(?:\.([0-9]{1,6}))?", path.name):
            numbers.setdefault(int(match[1]), []).append(int(match[2] or 1))
    return {number: sorted(numbers[number]) for number in sorted(numbers)}


@dataclass(frozen=True)
class Stretch:
    """The documents of a shard as its manifest tells them: from `first` on, before `stop`, over all repeats."""

    shard: Shard
    documents: range

    @classmethod
    def of(cls, recorded: dict[str, Any]) -> "Stretch":
        """That which a manifest has."""
        return cls(Shard(recorded["number"], recorded["of"]), range(recorded["first"], recorded["stop"]))

    def facts(self) -> dict[str, int]:
        """As the manifest has it."""
        return {**vars(self.shard), "first": self.documents.start, "stop": self.documents.stop}
