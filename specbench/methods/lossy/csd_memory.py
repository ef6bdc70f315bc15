"""CSD's correction memory as files: how often each pair of tokens was rejected, and the tokenizer of the ids.

Rows are (document, draft token, target token, count), so a file also contains the smaller memories that fewer documents
would have made. A folder holds a file for each task, and `universal.parquet` for tasks without one.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from specbench.base import files, parquet
from specbench.base.hashes import short_hash
from specbench.base.untrusted import brief, is_file, parse_json
from specbench.config import DATA, UserError
from specbench.engine.models.pair import Pair

Pairs = Mapping[tuple[int, int], int]  # (draft token, target token) -> times rejected
Rejections = Counter[tuple[int, int, int]]  # (document, draft token, target token) -> times rejected
VERSION = 2
# 1: without documents
# 2: the calibration document of each count, from 0; null in merged files
UNIVERSAL, OTHERS = "universal", "others"
SHIPPED = DATA / "trained" / "memory"
SCHEMA = pa.schema(
    [("document", pa.int32()), ("draft_token", pa.int32()), ("target_token", pa.int32()), ("count", pa.int64())]
)
DOC_HASHES = "doc_hashes"  # in a file's metadata: the documents that its counts come from, as in a run's manifest
COUNTS = pa.schema([SCHEMA.field(name) for name in SCHEMA.names[1:]])


class Named(Protocol):
    """A pair, or what is known of it."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer_hash(self) -> str: ...


class Counts(NamedTuple):
    """Counts of pairs, and where they come from."""

    pairs: Pairs
    tokenizer: str  # the hash of the tokenizer whose ids they count
    doc_hashes: frozenset[str] = frozenset()  # of the documents; empty if they are not known


@dataclass(frozen=True)
class Memory:
    """Frozen counts by task; those under "" serve every task without its own counts."""

    by_task: Mapping[str, Pairs]
    doc_hashes: frozenset[str] = frozenset()  # of the documents that were counted, as far as they are known
    sizes: Mapping[str, int] = field(default_factory=dict)  # documents by task, as far as they are known

    def of(self, task: str) -> Pairs:
        return self.by_task.get(task, self.by_task.get("", {}))

    def size(self, task: str) -> int:
        """How many documents the counts that serve a task are of; 0: not known."""
        return self.sizes.get(task if task in self.by_task else "", 0)

    def hashes(self) -> dict[str, str]:
        """The first 16 hexadecimal digits of SHA-256 of each task's counts, under `memory` and the task's name."""
        texts = {task: repr(sorted(counts.items())) for task, counts in sorted(self.by_task.items())}
        return {f"memory {task}".strip(): short_hash(text) for task, text in texts.items()}


def write_memory(
    path: Path, rejections: Rejections, pair: Named, source: dict[str, str], doc_hashes: Collection[str] = ()
) -> None:
    """Save the rejections of each document; `source` describes how they were collected."""
    rows = [(*key, n) for key, n in sorted(rejections.items())]
    _write(path, rows, {"tokenizer": pair.tokenizer_hash, "pair": pair.name, **source}, doc_hashes)


def _write(
    path: Path,
    rows: Sequence[tuple[int | None, int, int, int]],
    metadata: dict[str, str],
    doc_hashes: Collection[str],
) -> None:
    if doc_hashes:
        metadata = metadata | {DOC_HASHES: json.dumps(sorted(doc_hashes))}
    columns = dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(SCHEMA.names, ())
    table = pa.table(columns, schema=SCHEMA.with_metadata({**metadata, "schema": str(VERSION)}))
    parquet.write(path, table)


def read_memory(path: Path, pair: Pair, documents: int = 0) -> Counts:
    """The counts of the first `documents` of a file, or of all (0).

    Raises UserError for a file that is damaged, of a later schema, of another tokenizer, or of fewer documents.
    """
    counts = read_counts(path, documents)
    if counts.tokenizer != pair.tokenizer_hash:
        raise UserError(
            f"the memory {path} belongs to another tokenizer ({counts.tokenizer or 'unknown'}; the pair {pair.name} "
            f"has {pair.tokenizer_hash}); calibrate for this pair: specbench calibrate --method csd --pair {pair.name}"
        )
    return counts


def read_counts(path: Path, documents: int = 0) -> Counts:
    """The counts of a file, of the tokenizer of any pair. Raises UserError as `read_memory`."""
    if not is_file(path):
        raise UserError(f"there is no memory file {path}; `specbench calibrate --method csd` writes one")
    try:
        table = parquet.read(path)
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        if int(metadata.get("schema", VERSION)) > VERSION:
            raise UserError(f"the memory {path} was written by a later version of specbench; use that one to read it")
        if (documents and "document" not in table.column_names) or documents > int(metadata.get("documents", 0)):
            raise UserError(
                f"{path} does not hold {documents} documents (it has {metadata.get('documents', 'none')}); "
                "set calibration_size to fewer, or 0 for all"
            )
        if documents:
            table = table.filter(pc.field("document") < documents)
        doc_hashes = frozenset(map(str, parse_json(metadata.get(DOC_HASHES, "[]"), str(path))))
        columns = [column.to_pylist() for column in table.select(SCHEMA.names[1:]).cast(COUNTS).columns]
    except parquet.ERRORS as error:
        raise UserError(f"{path} is not a memory file, or damaged ({brief(error)}); calibrate again") from None
    if any(None in column or min(column, default=0) < 0 for column in columns):
        raise UserError(f"{path} is damaged: it has rows without a token, or tokens or counts below 0; calibrate again")
    counts: Counter[tuple[int, int]] = Counter()
    for d, t, n in zip(*columns, strict=True):
        counts[d, t] += n
    return Counts(counts, metadata.get("tokenizer", ""), doc_hashes)


def find_memory(setting: str, calibration: str, pair: Pair, documents: int = 0) -> Memory | None:
    """The memory that a setting names: a file for all tasks, a folder, `auto` for the pair's own folder, or `none`.

    `calibration` says which files of a folder serve a task: `task-specific` (its own, else the universal one),
    `universal`, or `others` (those of all other tasks, added up; of a task without a file, those of all files).
    Only the counts of the first `documents` of each task are read; 0: all.
    """
    if setting == "none":
        return None
    path = SHIPPED / pair.name if setting == "auto" else Path(setting)
    if setting == "auto" and not path.is_dir():
        if calibration in (UNIVERSAL, OTHERS) or documents:
            raise UserError(
                f"no {calibration} memory of {documents or 'all'} documents comes with the pair {pair.name}; "
                f"specbench calibrate --method csd --pair {pair.name} --out FOLDER, then --set csd.memory=FOLDER"
            )
        return None
    if not path.is_dir():
        if calibration == OTHERS:
            raise UserError(f"{path} is one file, and others needs a folder with a memory for each task")
        counts = read_memory(path, pair, documents)
        return Memory({"": counts.pairs}, counts.doc_hashes, {"": 0 if documents else len(counts.doc_hashes)})
    by_task = {file.stem: file for file in sorted(path.glob("*.parquet"))}
    if calibration == UNIVERSAL:
        by_task = {name: file for name, file in by_task.items() if name == UNIVERSAL}
    if not by_task:
        wanted = "universal.parquet" if calibration == UNIVERSAL else "memory files"
        raise UserError(f"{path} has no {wanted}; `specbench calibrate --method csd --out {path}` writes them")
    if calibration == OTHERS and len(by_task.keys() - {UNIVERSAL}) < 2:
        raise UserError(f"{path} has memories of one task at most; others needs two: calibrate a suite of several")
    read = {"" if name == UNIVERSAL else name: read_memory(file, pair, documents) for name, file in by_task.items()}
    tasks = {name: counts.pairs for name, counts in read.items()}
    sizes = {name: documents or len(counts.doc_hashes) for name, counts in read.items() if name or not documents}
    if calibration == OTHERS:
        own = {task: pairs for task, pairs in tasks.items() if task}
        tasks = {task: _sum(pairs for name, pairs in own.items() if name != task) for task in own}
        tasks[""], sizes = _sum(own.values()), {}
    return Memory(tasks, _documents(read.values()), sizes)


def _sum(parts: Iterable[Pairs]) -> Pairs:
    total: Counter[tuple[int, int]] = Counter()
    for pairs in parts:
        total.update(pairs)
    return total


def _documents(parts: Iterable[Counts]) -> frozenset[str]:
    return frozenset().union(*(counts.doc_hashes for counts in parts))


def merge(parts: Mapping[str, Counts], out: Path) -> Pairs:
    """Add up counts into a new file, with the hashes of all their documents. `parts` have names for messages."""
    files.refuse_existing(out)
    tokenizers = {counts.tokenizer for counts in parts.values()}
    if len(tokenizers) > 1:
        named = ", ".join(f"{name}: {counts.tokenizer or 'unknown'}" for name, counts in parts.items())
        raise UserError(f"these memories belong to different tokenizers ({named}); merge those of one pair only")
    total = _sum(counts.pairs for counts in parts.values())
    rows = [(None, d, t, n) for (d, t), n in sorted(total.items())]
    _write(out, rows, {"tokenizer": tokenizers.pop(), "merged": " ".join(parts)}, _documents(parts.values()))
    return total
