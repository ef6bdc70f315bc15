"""The records of a run: the columns of its tables with their version, and how tables are read and written.

A finished run holds `samples.parquet` and `rounds.parquet`, an unfinished one their parts (recorder.py).
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specbench.base import parquet
from specbench.base.errors import UserError
from specbench.base.folder import Folder, FolderFile, LinkRefused
from specbench.base.untrusted import Source

VERSION = 13
# 1: first version.
# 2: new_tokens and wall_seconds of imported samples.
# 3: levels and parents of drafts that are trees.
# 4: predictions and confidences of drafted tokens.
# 5: overlaps and proposers of drafted tokens, forwards and seconds of further members, of collaborating models.
# 6: forwards and seconds of an arbitrator.
# 7: batch_seconds of samples.
# 8: times, parts and evidence of what servers of other engines answered.
# 9: host, device, worker and attempt of samples.
# 10: forwards and seconds of branches.
# 11: thoughts and other parts of servers' answers.
# 12: seconds of masks.
# 13: seconds of a round's first draft forward.

KEY = [
    pa.field("repeat", pa.int32()),
    pa.field("task", pa.string()),
    pa.field("doc_id", pa.int32()),
    pa.field("method", pa.string()),
    pa.field("warmup", pa.bool_()),
]
SAMPLES = pa.schema(
    [
        *KEY,
        pa.field("order", pa.int32()),  # place in the document's shuffled order of methods
        pa.field("seed", pa.int64()),
        pa.field("prompt_hash", pa.string()),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("tokens", pa.list_(pa.int32())),  # committed tokens, the prefill's first
        pa.field("text", pa.string()),
        pa.field("finish", pa.string()),  # eos, stop, length or error
        pa.field("error", pa.string()),
        pa.field("prefill_seconds", pa.float64()),  # round 0: all models read the prompt
        pa.field("decode_seconds", pa.float64()),  # all later rounds, stop handling included
        # Runs in batches that time some documents alone: the share of the batch's decoding; all other times are null.
        pa.field("batch_seconds", pa.float64()),
        pa.field("new_tokens", pa.int32()),  # imported runs and servers only: committed tokens, the prefill's included
        pa.field("wall_seconds", pa.float64()),  # imported runs and servers only: prefill and decoding in one figure
        pa.field("peak_memory", pa.int64()),  # bytes
        pa.field("load", pa.float64()),  # of the host, before the sample
        pa.field("clock_mhz", pa.float64()),
        pa.field("temperature_c", pa.float64()),
        pa.field("state_hash", pa.string()),  # of what the method had learned before this sample
        # Greedy lossless methods only: the first token that differs from vanilla's, and the top-2 logit gap there.
        pa.field("diverged_at", pa.int32()),
        pa.field("divergence_gap", pa.float64()),
        pa.field("divergence", pa.string()),  # tie or bug
        # Servers only; times in seconds of Unix time, on the client's clock.
        pa.field("due", pa.float64()),  # when the request should go
        pa.field("sent", pa.float64()),
        pa.field("first_token", pa.float64()),
        pa.field("ended", pa.float64()),
        pa.field("chunks", pa.list_(pa.float64())),  # when each part of the text came
        pa.field("chunk_tokens", pa.list_(pa.int32())),  # in each part; null: not told
        pa.field("other_chunks", pa.int32()),  # those of the parts that are no text of the answer: thoughts, tool calls
        pa.field("thought_tokens", pa.int32()),  # of the tokens, those of thoughts before the answer; null: not told
        pa.field("evidence", pa.string()),  # steps, histogram, counters, chunks (a lower bound of the rounds) or none
        pa.field("verify_rounds", pa.int32()),  # after the prefill, with a draft
        pa.field("draft_tokens", pa.int32()),
        pa.field("accepted_tokens", pa.int32()),
        pa.field("whole_rounds", pa.int32()),  # of these rounds, those that accepted their whole draft; null: not told
        # Who decoded it; null in runs of earlier versions. Of servers, whose device is not known, who asked.
        pa.field("host", pa.string()),
        pa.field("device", pa.string()),  # of the target: a GPU's UUID, or the CPU's name and number of cores
        pa.field("worker", pa.int32()),  # of a pool: its number; else the number of the shard, or 0 of a whole run
        pa.field("attempt", pa.int32()),  # how often the run or shard had begun; only what recorded documents counts
    ]
)
ROUNDS = pa.schema(
    [
        *KEY,
        pa.field("round", pa.int32()),  # 0 is the prefill
        pa.field("drafted", pa.int32()),
        pa.field("levels", pa.int32()),  # verified depth of the draft; of a tree, of the path that was followed
        pa.field("accepted", pa.int32()),
        pa.field("rescued", pa.int32()),
        pa.field("committed", pa.int32()),
        pa.field("truncated", pa.int32()),
        pa.field("target_forwards", pa.int32()),
        pa.field("draft_forwards", pa.int32()),
        pa.field("target_seconds", pa.float64()),
        pa.field("draft_seconds", pa.float64()),
        pa.field("first_draft_seconds", pa.float64()),  # of the first of them; null: not known
        pa.field("model_seconds", pa.float64()),  # during which any model computed a forward
        pa.field("member_forwards", pa.list_(pa.int32())),  # of members that are neither target nor draft
        pa.field("member_seconds", pa.list_(pa.float64())),
        pa.field("mask_seconds", pa.float64()),  # on the host, of what a constraint allows; no part of model_seconds
        pa.field("arbitrator_forwards", pa.int32()),
        pa.field("arbitrator_seconds", pa.float64()),
        pa.field("branch_forwards", pa.int32()),  # of the draft model, for drafts that may be the next one (`mirror`)
        pa.field("branch_seconds", pa.float64()),
        pa.field("seconds", pa.float64()),
        pa.field("draft_tokens", pa.list_(pa.int32())),
        pa.field("target_tokens", pa.list_(pa.int32())),  # what the target preferred at each position
        pa.field("decisions", pa.list_(pa.int8())),  # see DECISIONS
        pa.field("ratios", pa.list_(pa.float32())),  # p(draft token) / p(target token)
        pa.field("predictions", pa.list_(pa.float32())),  # the length policy's signal; NaN if it did not look there
        pa.field("confidences", pa.list_(pa.float32())),  # q(draft token), given its earlier siblings; if it was drawn
        pa.field("overlaps", pa.list_(pa.float32())),  # Σ min(q, r) at the position, T > 0; NaN if a model has no score
        pa.field("proposers", pa.list_(pa.int8())),  # the collaborating model that drafted the token, by index
        pa.field("parents", pa.list_(pa.int16())),  # of a tree: the drafted token that it follows, or -1 (context)
    ]
)
SCORES = pa.schema(
    [
        pa.field("repeat", pa.int32()),
        pa.field("task", pa.string()),
        pa.field("method", pa.string()),
        pa.field("doc_id", pa.int32()),  # null: the whole task
        pa.field("metric", pa.string()),
        pa.field("filter", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("stderr", pa.float64()),
    ]
)
WRITING: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True, "max_rows_per_page": 200_000}
GROUP = 50_000  # rows that are written at once
DECISIONS = ("rejected", "accepted", "rescued", "unread", "cut")  # unread: after a rejection; cut: after the end


def read_rows(folder: Path, name: str, columns: list[str] | None = None) -> pa.Table:
    """The `samples` or `rounds` of a finished or unfinished run."""
    with Folder.at(folder) as opened:
        return open_rows(opened, name).to_table(columns)


def open_rows(folder: Folder, name: str, known: "list[PartFile] | None" = None) -> parquet.RowGroups:
    """As `read_rows`, but nothing is read yet. `known`: the parts of an unfinished run, if they were listed already."""
    schema = SAMPLES if name == "samples" else ROUNDS  # columns that an older version lacks are null
    return parquet.RowGroups(files_of(folder, name, known), schema)


def files_of(folder: Folder, name: str, known: "list[PartFile] | None" = None) -> list[FolderFile]:
    """The files of a table: the table of a finished run, or its parts."""
    if folder.has(f"{name}.parquet") or not folder.has("parts"):
        return [FolderFile(folder, f"{name}.parquet")] if folder.has(f"{name}.parquet") else []
    inner = folder.folder("parts")
    return [FolderFile(inner, part.name(name)) for part in (parts(folder) if known is None else known)]


@dataclass(frozen=True, order=True)
class PartFile:
    """A document of a run, or a block of them from `first` to `last`, as the files in `parts/` are named."""

    first: int
    last: int

    @classmethod
    def of(cls, name: str) -> "PartFile | None":
        """The part that a file belongs to; None if it belongs to none."""
        match = re.fullmatch(r"(\d{6,})(?:-(\d{6,}))?\.(?:states\.json|rounds\.parquet|samples\.parquet)", name)
        return cls(int(match[1]), int(match[2] or match[1])) if match else None

    def name(self, table: str) -> str:
        """The name of the file of a table, or of `states`."""
        numbers = f"{self.first:06d}" + (f"-{self.last:06d}" if self.last > self.first else "")
        return f"{numbers}.{table}.{'json' if table == 'states' else 'parquet'}"


def parts(folder: Folder) -> list[PartFile]:
    """The parts of an unfinished run that count, in order: from document 0 on without a gap, each document once.

    A part counts if its samples, which are written last, are there. A block replaces the single parts that it was made
    of.
    """
    names = folder.folder("parts").names() if folder.has("parts") else []
    existing = [part for name in names if name.endswith(".samples.parquet") and (part := PartFile.of(name))]
    counting: list[PartFile] = []
    next_document = 0
    for part in sorted(existing, key=lambda part: (part.first, -part.last)):
        if part.first == next_document:
            counting.append(part)
            next_document = part.last + 1
    return counting


def write_table(target: Source, rows: Iterable[dict[str, Any]], schema: pa.Schema) -> None:
    parquet.put(target, table_of(list(rows), _marked(schema)), WRITING | {"row_group_size": GROUP})


def table_of(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as a table. Columns that no row has are made at once: most columns of most tables are null."""
    known = set(chain.from_iterable(rows))
    return filled({name: [row.get(name) for row in rows] for name in schema.names if name in known}, len(rows), schema)


def filled(columns: Mapping[str, Any], count: int, schema: pa.Schema) -> pa.Table:
    """A table of `count` rows, of which the columns that are not given are null."""
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_tables(target: Source, tables: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Write a table that may not fit into memory, of parts in the order of their rows."""
    member = target if isinstance(target, FolderFile) else FolderFile(Folder.at(target.parent), target.name)
    with parquet.whole(member, _marked(schema), WRITING) as writer:
        for table in tables:
            writer.write_table(table.cast(_marked(schema)))


def write_frame(target: Source, frame: pd.DataFrame) -> None:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    parquet.put(target, table.replace_schema_metadata({"specbench_schema": str(VERSION)}), WRITING)


def stream(
    target: FolderFile,
    rows: parquet.RowGroups,
    filter: pc.Expression | None = None,
    more: Iterable[dict[str, Any]] = (),
) -> None:
    """Write a table that may not fit into memory: the rows for which `filter` is true, and `more` after them."""
    schema = _marked(rows.schema)
    added = pa.Table.from_pylist(list(more), schema=rows.schema).to_batches()
    with parquet.whole(target, schema, WRITING) as writer:
        groups: list[pa.RecordBatch] = []
        for batch in chain(rows.to_batches(filter=filter), added):
            groups.append(batch)
            if sum(group.num_rows for group in groups) >= GROUP:
                writer.write_table(pa.Table.from_batches(groups).cast(schema))
                groups.clear()
        if groups:
            writer.write_table(pa.Table.from_batches(groups).cast(schema))


def is_whole(file: FolderFile, schema: pa.Schema) -> bool:
    """True if every page of a table can be read, has its checksum, and is not far larger in memory."""
    try:
        for _ in parquet.RowGroups([file], schema).to_batches():
            pass
        return True
    except LinkRefused:
        raise
    except (OSError, UserError):
        return False


def read_frame(path: Path) -> pd.DataFrame:
    """One of the tables of a run as a data frame, which is a copy."""
    return parquet.read(path).to_pandas()


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a data frame, with None for missing values."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _marked(schema: pa.Schema) -> pa.Schema:
    return schema.with_metadata({"specbench_schema": str(VERSION)})


@dataclass(frozen=True)
class Elements:
    """The elements of a batch's lists, arrays [elements]."""

    row: NDArray[np.int64]  # the round in the batch
    position: NDArray[np.int64]  # in the round's list
    values: dict[str, NDArray[Any]]  # by column


def stretches(batch: pa.RecordBatch | pa.Table, keys: Sequence[str]) -> NDArray[np.int64]:
    """Where rows begin whose `keys` are not those of the row before: writers put the rounds of a text together."""
    if not batch.num_rows:
        return np.zeros(0, np.int64)
    begins = np.zeros(batch.num_rows, bool)
    begins[0] = True
    for key in keys:
        values = batch[key].combine_chunks() if isinstance(batch, pa.Table) else batch[key]
        if pa.types.is_string(values.type):
            values = values.dictionary_encode()
        if pa.types.is_dictionary(values.type):
            values = values.indices
        numbers = values.fill_null(-1) if not pa.types.is_boolean(values.type) else values.fill_null(False)
        numbers = numbers.to_numpy(zero_copy_only=False)
        begins[1:] |= numbers[1:] != numbers[:-1]
    return np.flatnonzero(begins)


def uncoded(table: pa.Table) -> pa.Table:
    """A table whose dictionaries are texts."""
    texts = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(texts))


def keys_of(batch: pa.RecordBatch, names: Sequence[str], rows: NDArray[np.int64]) -> dict[str, pa.Array]:
    """Columns of the rounds with these numbers; the task, of which there are few, as a dictionary."""
    taken = {name: batch.column(name).take(pa.array(rows)) for name in names}
    return taken | {"task": taken["task"].dictionary_encode()}


def flatten(folder: Path, batch: pa.RecordBatch, columns: Sequence[str], optional: str) -> Elements:
    """Flatten list columns of rounds: an element for each drafted token, by whole columns instead of round by round.

    `optional` is a column of numbers, which are NaN for rounds without a list there. Raises UserError, which names the
    run's folder, if the lists of a round differ in length.
    """
    counts = {name: pc.list_value_length(batch.column(name)).fill_null(0).to_numpy() for name in (*columns, optional)}
    lengths = counts[columns[0]]
    present = batch.column(optional).is_valid().to_numpy(zero_copy_only=False)
    same = all(np.array_equal(counts[name], lengths) for name in columns)
    if not same or not np.array_equal(counts[optional], lengths * present):
        raise UserError(f"a round of {folder} has lists of different lengths: damaged; this run cannot be used")
    row = np.repeat(np.arange(len(lengths)), lengths)
    values = {name: batch.column(name).flatten().to_numpy(zero_copy_only=False) for name in columns}
    values[optional] = np.full(len(row), math.nan)
    values[optional][present[row]] = batch.column(optional).flatten().to_numpy(zero_copy_only=False)
    return Elements(row, np.arange(len(row)) - (np.cumsum(lengths) - lengths)[row], values)
