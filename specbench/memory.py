"""CSD's correction memory as files: rows (draft token, target token, count) and the tokenizer they speak of.

A folder holds a file for each task and `universal.parquet` for tasks without one.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from specbench.config import SUITES, UserError
from specbench.models import Pair

Pairs = Mapping[tuple[int, int], int]  # (draft token, target token) -> times rejected
VERSION = 1
UNIVERSAL = "universal"
SHIPPED = SUITES / "methods" / "memory"
SCHEMA = pa.schema([("draft_token", pa.int32()), ("target_token", pa.int32()), ("count", pa.int64())])


@dataclass(frozen=True)
class Memory:
    """Frozen counts by task; those under "" serve every task without its own."""

    by_task: Mapping[str, Pairs]

    def of(self, task: str) -> Pairs:
        return self.by_task.get(task, self.by_task.get("", {}))

    def hashes(self) -> dict[str, str]:
        """The first 16 hexadecimal digits of SHA-256 of each task's counts, by `memory` and the task's name."""
        return {f"memory {task}".strip(): _digest(counts) for task, counts in sorted(self.by_task.items())}


def _digest(counts: Pairs) -> str:
    return hashlib.sha256(repr(sorted(counts.items())).encode()).hexdigest()[:16]


def write_memory(path: Path, counts: Pairs, pair: Pair, source: dict[str, str]) -> None:
    """Save counts, most frequent first; `source` says how they came about."""
    _write(path, counts, {"tokenizer": pair.tokenizer_hash, "pair": pair.name, **source})


def _write(path: Path, counts: Pairs, metadata: dict[str, str]) -> None:
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    table = pa.table(
        {
            "draft_token": [d for (d, _), _ in rows],
            "target_token": [t for (_, t), _ in rows],
            "count": [n for _, n in rows],
        },
        schema=SCHEMA.with_metadata({**metadata, "schema": str(VERSION)}),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    pq.write_table(table, new, compression="zstd")
    new.replace(path)


def read_memory(path: Path, pair: Pair) -> Counter[tuple[int, int]]:
    """Counts of one file. Raises UserError for one that is damaged, of a later schema or of another tokenizer."""
    counts, speaks_of = read_counts(path)
    if speaks_of != pair.tokenizer_hash:
        raise UserError(
            f"the memory {path} belongs to another tokenizer ({speaks_of or 'unknown'}; the pair {pair.name} has "
            f"{pair.tokenizer_hash}); calibrate for this pair: specbench calibrate --method csd --pair {pair.name}"
        )
    return counts


def read_counts(path: Path) -> tuple[Counter[tuple[int, int]], str]:
    """Counts of a file and the hash of the tokenizer that they speak of. Raises UserError for a damaged file."""
    if not path.is_file():
        raise UserError(f"there is no memory file {path}; `specbench calibrate --method csd` writes one")
    try:
        table = pq.read_table(path)
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        if int(metadata.get("schema", VERSION)) > VERSION:
            raise UserError(f"the memory {path} was written by a later version of specbench; use that one to read it")
        columns = [column.to_pylist() for column in table.select(SCHEMA.names).cast(SCHEMA).columns]
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise UserError(f"{path} is no memory file, or damaged ({' '.join(str(error).split())[:80]})") from None
    if any(None in column for column in columns) or min(columns[2], default=0) < 0:
        raise UserError(f"{path} is damaged: it has rows without a token, or counts below 0")
    counts: Counter[tuple[int, int]] = Counter()
    for d, t, n in zip(*columns, strict=True):
        counts[d, t] += n
    return counts, metadata.get("tokenizer", "")


def find_memory(setting: str, calibration: str, pair: Pair) -> Memory | None:
    """The memory that a setting names: a file for all tasks, a folder, `auto` for the pair's own folder, or `none`.

    `calibration` is `task-specific` (a folder's file for each task, the universal one for others) or `universal`.
    """
    if setting == "none":
        return None
    path = SHIPPED / pair.name if setting == "auto" else Path(setting)
    if setting == "auto" and not path.is_dir():
        return None
    if not path.is_dir():
        return Memory({"": read_memory(path, pair)})
    files = {file.stem: file for file in sorted(path.glob("*.parquet"))}
    if calibration == UNIVERSAL:
        files = {name: file for name, file in files.items() if name == UNIVERSAL}
    if not files:
        wanted = "universal.parquet" if calibration == UNIVERSAL else "memory files"
        raise UserError(f"{path} has no {wanted}; `specbench calibrate --method csd --out {path}` writes them")
    return Memory({"" if name == UNIVERSAL else name: read_memory(file, pair) for name, file in files.items()})


def merge(parts: Mapping[str, tuple[Pairs, str]], out: Path) -> Pairs:
    """Add up counts, each with the hash of its tokenizer, into a new file. `parts` have names for messages."""
    if out.exists():
        raise UserError(f"{out} exists; choose another --out")
    tokenizers = {tokenizer for _, tokenizer in parts.values()}
    if len(tokenizers) > 1:
        named = ", ".join(f"{name}: {tokenizer or 'unknown'}" for name, (_, tokenizer) in parts.items())
        raise UserError(f"these memories belong to different tokenizers ({named}); merge those of one pair only")
    total: Counter[tuple[int, int]] = Counter()
    for counts, _ in parts.values():
        total.update(counts)
    _write(out, total, {"tokenizer": tokenizers.pop(), "merged": " ".join(parts)})
    return total
