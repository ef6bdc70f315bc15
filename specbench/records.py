"""The records of a run: column names, schemas with their version, and files that survive a kill at any moment.

A run folder holds `manifest.json`, and while it runs a folder `parts/` with two Parquet files per document, each put
in place whole by a rename, and what the methods had learned by the last one. When all documents are done the parts
become `samples.parquet` and `rounds.parquet`.
"""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

VERSION = 6
# 1: first version.
# 2: new_tokens and wall_seconds of imported samples.
# 3: levels and parents of drafts that are trees.
# 4: predictions and confidences of drafted tokens.
# 5: overlaps and proposers of drafted tokens, forwards and seconds of further members, of collaborating models.
# 6: forwards and seconds of an arbitrator.

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
        pa.field("tokens", pa.list_(pa.int32())),  # committed ones, prefill's first
        pa.field("text", pa.string()),
        pa.field("finish", pa.string()),  # eos, stop, length or error
        pa.field("error", pa.string()),
        pa.field("prefill_seconds", pa.float64()),  # round 0: all models read the prompt
        pa.field("decode_seconds", pa.float64()),  # all later rounds, stop handling included
        pa.field("new_tokens", pa.int32()),  # imported runs only: all committed ones, prefill's included
        pa.field("wall_seconds", pa.float64()),  # imported runs only: prefill and decoding, where they are one figure
        pa.field("peak_memory", pa.int64()),  # bytes
        pa.field("load", pa.float64()),  # of the host, before the sample
        pa.field("clock_mhz", pa.float64()),
        pa.field("temperature_c", pa.float64()),
        pa.field("state_hash", pa.string()),  # of what the method had learned before this sample
        # Greedy lossless methods only: the first token that is not vanilla's, and the target's top-2 logit gap there.
        pa.field("diverged_at", pa.int32()),
        pa.field("divergence_gap", pa.float64()),
        pa.field("divergence", pa.string()),  # tie or bug
    ]
)
ROUNDS = pa.schema(
    [
        *KEY,
        pa.field("round", pa.int32()),  # 0 is the prefill
        pa.field("drafted", pa.int32()),
        pa.field("levels", pa.int32()),  # of the draft where it was verified: of a tree, those that the path met
        pa.field("accepted", pa.int32()),
        pa.field("rescued", pa.int32()),
        pa.field("committed", pa.int32()),
        pa.field("truncated", pa.int32()),
        pa.field("target_forwards", pa.int32()),
        pa.field("draft_forwards", pa.int32()),
        pa.field("target_seconds", pa.float64()),
        pa.field("draft_seconds", pa.float64()),
        pa.field("model_seconds", pa.float64()),  # in which a forward of any model was under way
        pa.field("member_forwards", pa.list_(pa.int32())),  # of the members that are neither target nor draft
        pa.field("member_seconds", pa.list_(pa.float64())),
        pa.field("arbitrator_forwards", pa.int32()),
        pa.field("arbitrator_seconds", pa.float64()),
        pa.field("seconds", pa.float64()),
        pa.field("draft_tokens", pa.list_(pa.int32())),
        pa.field("target_tokens", pa.list_(pa.int32())),  # what the target preferred at each position
        pa.field("decisions", pa.list_(pa.int8())),  # see DECISIONS
        pa.field("ratios", pa.list_(pa.float32())),  # p(draft token) / p(target token)
        pa.field("predictions", pa.list_(pa.float32())),  # what the length policy went by; NaN: it did not look there
        pa.field("confidences", pa.list_(pa.float32())),  # q(draft token), given its siblings before it; if drawn
        pa.field("overlaps", pa.list_(pa.float32())),  # Σ min(q, r) at the position, T > 0; NaN: not all had scored it
        pa.field("proposers", pa.list_(pa.int8())),  # which of the collaborating models drafted the token
        pa.field("parents", pa.list_(pa.int16())),  # of a tree: which drafted token each one follows, -1 the context
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
DECISIONS = ("rejected", "accepted", "rescued", "unread", "cut")  # unread: behind a rejection; cut: behind the end


class Recorder:
    """Writes one run folder, a document at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = folder / "parts"
        folder.mkdir(parents=True, exist_ok=True)
        self.merged = all((folder / f"{name}.parquet").exists() for name in ("samples", "rounds"))
        if not self.merged:
            self.parts.mkdir(parents=True, exist_ok=True)

    def write(self, index: int, samples: list[dict], rounds: list[dict], states: dict[str, Any]) -> None:
        """Put one document's records in place. The samples come last: once they are there, the document is done.

        `states` is what each method had learned by the end of the document, for a later resume.
        """
        write_json(self.parts / f"{index:06d}.states.json", states)
        write_table(self.parts / f"{index:06d}.rounds.parquet", rounds, ROUNDS)
        write_table(self.parts / f"{index:06d}.samples.parquet", samples, SAMPLES)
        (self.parts / f"{index - 1:06d}.states.json").unlink(missing_ok=True)

    def done(self) -> int:
        """How many documents are recorded; they are the first ones, since documents are written in order."""
        return sum(1 for _ in self.parts.glob("*.samples.parquet"))

    def states(self, index: int) -> dict[str, Any]:
        return json.loads((self.parts / f"{index:06d}.states.json").read_text())

    def finish(self) -> None:
        """Merge the parts into the two tables, samples last, and remove the parts. Does nothing the second time."""
        if not self.merged:
            for name, schema in (("rounds", ROUNDS), ("samples", SAMPLES)):
                _put(self.folder / f"{name}.parquet", read_rows(self.folder, name).cast(_marked(schema)))
            self.merged = True
        shutil.rmtree(self.parts, ignore_errors=True)


def read_rows(folder: Path, name: str, columns: list[str] | None = None) -> pa.Table:
    """The `samples` or `rounds` of a finished or an unfinished run."""
    return scan(folder, name).to_table(columns=columns)


def scan(folder: Path, name: str) -> ds.Dataset:
    """As `read_rows`, but nothing is read yet."""
    whole = folder / f"{name}.parquet"
    schema = SAMPLES if name == "samples" else ROUNDS
    if whole.exists():
        return ds.dataset(whole, schema)  # columns that an older version lacks are null
    done = {path.name.split(".")[0] for path in (folder / "parts").glob("*.samples.parquet")}
    paths = [folder / "parts" / f"{index}.{name}.parquet" for index in sorted(done)]
    return ds.dataset(paths, schema) if paths else ds.dataset(schema.empty_table())


def write_table(path: Path, rows: Iterable[dict[str, Any]], schema: pa.Schema) -> None:
    _put(path, pa.Table.from_pylist(list(rows), schema=_marked(schema)))


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    _put(path, table.replace_schema_metadata({"specbench_schema": str(VERSION)}))


def read_frame(path: Path) -> pd.DataFrame:
    """One of the tables of a run as a data frame; its rows are copies."""
    return pq.read_table(path).to_pandas()


def write_json(path: Path, value: Any) -> None:
    new = path.with_name(path.name + ".new")
    with open(new, "w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _put(path: Path, table: pa.Table) -> None:
    """Write a Parquet file whole or not at all."""
    new = path.with_name(path.name + ".new")
    pq.write_table(table, new, compression="zstd")
    with open(new, "rb") as file:
        os.fsync(file.fileno())
    new.replace(path)


def _marked(schema: pa.Schema) -> pa.Schema:
    return schema.with_metadata({"specbench_schema": str(VERSION)})
