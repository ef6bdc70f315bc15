"""Checks of a run's tables, once, in batches, before anything is computed from them: could a run have written them?"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from specbench.base.errors import UserError
from specbench.base.parquet import RowGroups
from specbench.base.untrusted import Source
from specbench.results import records

SCHEMAS = {"samples": records.SAMPLES, "rounds": records.ROUNDS, "scores": records.SCORES}
TEXT = ["repeat", "task", "doc_id", "method", "warmup"]
KEYS = {
    "samples": TEXT,
    "rounds": [*TEXT, "round"],
    "scores": ["repeat", "task", "method", "metric", "filter"],
}
# Columns that may be below 0 or infinite; `accepted` is checked in rounds whose draft is recorded.
SIGNED = ("accepted", "seed", "temperature_c", "divergence_gap", "value", "stderr")
LARGEST = {"drafted": 2**15, "levels": 2**15, "decisions": len(records.DECISIONS) - 1}
FREE = ("text", "error", "prompt_hash", "state_hash", "host", "device")  # texts that may be any
FINISHES = ("eos", "stop", "length", "error")
# Lists with an entry for each drafted token.
DRAFTED = (
    *("draft_tokens", "target_tokens", "decisions", "ratios", "predictions", "confidences"),
    *("overlaps", "proposers", "parents"),
)
MAY_LACK = ("ratios", "predictions", "confidences", "overlaps")  # lists in which a value may be unknown (NaN or null)


def check(rows: RowGroups, name: str, methods: Sequence[str], tasks: Sequence[str]) -> pa.Table:
    """Check the rows of the table `name` of a run.

    Returns:
        The keys (TEXT) of the texts that it has rows of, each once; of `scores`, the keys of its rows.

    Raises:
        UserError: the table is damaged, of another form, or holds what no run can have written: rows of no method or
            task of the run, negative or infinite counts and times, lists whose length is not that of the round's
            draft, or a row twice.
    """
    for source, schema in zip(rows.sources, rows.check(KEYS[name]), strict=True):
        if _version(schema) > records.VERSION:
            raise UserError(f"{source} was written by a later version of specbench; read it with that one")
    keys = TEXT if name != "scores" else [*KEYS[name], "doc_id"]
    if not rows.sources:
        return SCHEMAS[name].empty_table().select(keys)
    first = rows.sources[0]
    damaged = f"{first if len(rows.sources) == 1 else f'{first}, or one next to it,'} is damaged"
    tables: list[pa.Table] = []
    read = [field.name for field in SCHEMAS[name] if field.name not in FREE]
    for batch in rows.to_batches(read, coded=("task", "method") if name == "rounds" else ()):
        if wrong := _wrong(batch, name, methods, tasks):
            raise UserError(f"{damaged} ({wrong}); this run cannot be used")
        if name == "rounds" and (texts := _in_order(batch)) is not None:
            tables.append(texts)
            continue
        counted = "round" if name == "rounds" else "method"
        sums = [(counted, "count"), *([("round", "count_distinct"), ("round", "min"), ("round", "max")])]
        table = pa.Table.from_batches([batch]).select([*keys, *({"round"} if name == "rounds" else ())])
        table = records.uncoded(table)
        tables.append(table.group_by(keys, use_threads=False).aggregate(sums if name == "rounds" else sums[:1]))
    if not tables:
        return SCHEMAS[name].empty_table().select(keys)
    texts = pa.concat_tables(tables)
    if name == "rounds" and _twice(texts, name, keys):  # or parts of a text interleave, which only a whole count tells
        whole = rows.to_table([*keys, "round"])
        sums = [("round", "count"), ("round", "count_distinct"), ("round", "min"), ("round", "max")]
        texts = whole.group_by(keys, use_threads=False).aggregate(sums)
    if twice := _twice(texts, name, keys):
        raise UserError(f"{damaged} (it holds {twice} twice); this run cannot be used")
    return texts.select(keys).group_by(keys, use_threads=False).aggregate([])


def _in_order(batch: pa.RecordBatch) -> pa.Table | None:
    """The texts of rounds that stand together in their order, as `check` counts them; None if some do not."""
    starts = records.stretches(batch, TEXT)
    numbers = batch["round"].to_numpy(zero_copy_only=False)
    inside = np.ones(len(numbers), bool)
    inside[starts] = False
    if len(numbers) and not (np.diff(numbers, prepend=numbers[:1])[inside] > 0).all():
        return None
    keys = pa.Table.from_batches([batch]).select(TEXT).take(pa.array(starts))
    counts = pa.array(np.diff(starts, append=len(numbers)))
    columns = {"round_count": counts, "round_count_distinct": counts}
    columns |= {"round_min": batch["round"].take(pa.array(starts))}
    columns |= {"round_max": pa.array(numbers[np.append(starts[1:], len(numbers)) - 1]) if len(starts) else counts}
    for column, values in columns.items():
        keys = keys.append_column(column, values.cast(pa.int64()))
    return records.uncoded(keys)


def check_texts(rounds: pa.Table, samples: pa.Table, where: Source) -> None:
    """Raise UserError if there are rounds of a text without a sample; warm-ups, which nobody reads, do not count."""
    orphans = rounds.filter(pc.invert(rounds["warmup"])).join(samples, TEXT, join_type="left anti")
    if len(orphans):
        key = ", ".join(map(str, orphans.slice(0, 1).to_pylist()[0].values()))
        raise UserError(f"{where} is damaged (it has rounds of {key}, and no such sample); this run cannot be used")


def _version(schema: pa.Schema) -> int:
    version = (schema.metadata or {}).get(b"specbench_schema", b"1")
    return int(version) if version.isdigit() and len(version) < 9 else records.VERSION + 1


def _wrong(batch: pa.RecordBatch, name: str, methods: Sequence[str], tasks: Sequence[str]) -> str:
    """What in a batch no run can have written, in words; empty if there is nothing."""
    for key in KEYS[name]:
        if batch[key].null_count:
            return f"rows without {key}"
    for key, known in (("method", methods), ("task", tasks)):
        for value in pc.unique(batch[key]).to_pylist():
            if value not in known:
                return f"it has rows of {value!r}, which is no {key} of this run"
    if name == "samples":
        for value in pc.unique(batch["finish"]).to_pylist():
            if value is not None and value not in FINISHES:
                return f"finish is {value!r}"
        plain = pc.and_(pc.invert(batch["warmup"]), pc.fill_null(pc.equal(batch["finish"], "eos"), False))
        if pc.any(pc.and_(plain, pc.equal(pc.fill_null(pc.list_value_length(batch["tokens"]), 1), 0))).as_py():
            return "a text that ended by a token has none"
    for column in batch.schema.names:
        if problem := _outside(column, batch[column]):
            return problem
    return _unequal(batch) if name == "rounds" else ""


def _outside(name: str, values: pa.Array) -> str:
    """A value of a column that is out of its bounds, in words."""
    if pa.types.is_list(values.type):
        values = values.flatten()
        if values.null_count and name not in MAY_LACK:
            return f"{name} lacks values"
    if name in SIGNED or not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return ""
    bounds: dict[str, Any] = pc.min_max(values).as_py()
    least, most = bounds["min"], bounds["max"]
    if least is None or least != least:  # only nulls, or NaN
        return ""
    if least < (-1 if name in ("parents", "proposers", "target_tokens") else 0):
        return f"{name} is {least}"
    if name != "ratios" and most > LARGEST.get(name, 2**62):
        return f"{name} is {most}"
    return ""


def _unequal(batch: pa.RecordBatch) -> str:
    """A contradiction between the columns of a round, in words."""
    drafted = batch["drafted"]
    recorded = pc.is_valid(batch["draft_tokens"])
    if pc.any(pc.and_(recorded, pc.less(batch["accepted"], 0))).as_py():
        return "accepted is below 0"
    for name in ("drafted", "accepted", "rescued", "committed", "truncated"):
        if pc.any(pc.and_(recorded, pc.is_null(batch[name]))).as_py():
            return f"rounds tell their drafts, and not {name}"
    for name in DRAFTED:
        lengths = pc.list_value_length(batch[name])
        if pc.any(pc.not_equal(lengths, drafted)).as_py():
            return f"lists of different lengths: {name} and what was drafted"
    for least, most in (
        ("rescued", "accepted"),
        ("accepted", "levels"),
        ("accepted", "drafted"),
        ("levels", "drafted"),
    ):
        if pc.any(pc.and_(recorded, pc.greater(batch[least], batch[most]))).as_py():
            return f"{least} is more than {most}"
    parents = batch["parents"]
    if parents.null_count < len(parents):
        places = [place for length in pc.list_value_length(parents).to_pylist() for place in range(length or 0)]
        if pc.any(pc.greater_equal(parents.flatten(), pa.array(places, pa.int64()))).as_py():
            return "a drafted token follows a later one"
    return ""


def _twice(texts: pa.Table, name: str, keys: list[str]) -> str:
    """The key of a row that is there twice; warm-ups do not count, as a resumed run repeats them."""
    if "warmup" in keys:
        texts = texts.filter(pc.invert(texts["warmup"]))
    if name == "rounds":
        # Parts of a text lie in several batches; in each part a round is there once, or the numbers differ.
        within = texts.filter(pc.not_equal(texts["round_count"], texts["round_count_distinct"]))
        parts = texts.to_pandas().sort_values([*keys, "round_min"], kind="stable")
        earlier = parts.groupby(keys).round_max.shift()
        across = texts.take(pa.array(parts.index[(earlier >= parts.round_min) & ~parts.warmup]))
        texts = pa.concat_tables([within.select(keys), across.select(keys)])
    else:
        texts = texts.group_by(keys, use_threads=False).aggregate([("method_count", "sum")])
        texts = texts.filter(pc.greater(texts["method_count_sum"], 1))
    return ", ".join(map(str, texts.select(keys).slice(0, 1).to_pylist()[0].values())) if len(texts) else ""
