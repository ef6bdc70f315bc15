"""Turn records into rates: pure functions over the tables of a run. docs/pages/columns.md defines them.

Warm-up and failed samples are left out, and so is round 0 (the prefill) of every sample. If a record lacks a value, as
imported ones may, the rates that need it are NaN.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specbench.base.parquet import RowGroups
from specbench.base.stats import Interval, pooled_rate
from specbench.results import records
from specbench.results.stored import StoredRun

SAMPLE = ["repeat", "task", "doc_id", "method"]
# What `per_document` reads of samples.
TIMED = [*SAMPLE, "warmup", "finish", "prefill_seconds", "decode_seconds", "batch_seconds", "peak_memory", "new_tokens"]
TIMED += ["wall_seconds"]
_field = pc.field
_ones = pc.scalar(1)
_levels = pc.coalesce(_field("levels"), _field("drafted"))  # records before version 3 hold chains only
# The sums over the rounds of a sample.
COUNTS = {
    "D": _field("drafted"),
    "A": _field("accepted"),
    "J": ((_field("truncated") == 0) & (_field("accepted") < _levels)).cast(pa.int32()),
    "S": _field("rescued"),
    "C": _field("committed"),
    "F": _field("target_forwards"),
    "G": _field("draft_forwards"),
    "B": pc.coalesce(_field("branch_forwards"), pc.scalar(0)),  # version 10 on
    "R": _ones,
    "target": _field("target_seconds"),
    "draft": _field("draft_seconds"),
    "arbitrator": pc.coalesce(_field("arbitrator_seconds"), pc.scalar(0.0)),  # version 6 on
    "masks": pc.coalesce(_field("mask_seconds"), pc.scalar(0.0)),  # version 12 on
    "models": pc.coalesce(_field("model_seconds"), _field("target_seconds") + _field("draft_seconds")),  # version 5 on
}
_KNOWN: "WeakKeyDictionary[RowGroups, pd.DataFrame]" = WeakKeyDictionary()  # what `_of_texts` gave
SUMMED = [*COUNTS, "E", "prefill", "decode", "decoded", "batched", "whole", "whole_tokens"]
TIMES = [
    "tokens_per_s",
    "tokens_per_s_mean",
    "tokens_per_s_e2e",
    "tokens_per_s_e2e_mean",
    "arbitrator_share",
    "overhead",
]
# Those that mean nothing of texts from unlike hardware.
SPEEDS = ["tokens_per_s", "tokens_per_s_mean", "tokens_per_s_e2e", "tokens_per_s_e2e_mean", "tokens_per_s_batch"]
DEPTH = ["depth", "cond_accept", "joint_accept", "tested"]
CUT = records.DECISIONS.index("cut")
DRIFT_BOUND = 0.10  # a baseline is flagged if its time per token moved by more than this between the halves of a run


def timed_samples(samples: pd.DataFrame) -> pd.DataFrame:
    """The samples that count: neither warm-up nor failed."""
    return samples[~samples.warmup & (samples.finish != "error")]


def of_method(method: str) -> pc.Expression:
    """Selects a method's rounds or samples, without warm-up."""
    return ~_field("warmup") & (_field("method") == method)


def headline_rows(run: StoredRun, unfinished: bool = False) -> pd.DataFrame:
    """The scores by each task's headline metric; an unfinished run has none if it is allowed, else raises UserError."""
    scores = records.SCORES.empty_table().to_pandas() if unfinished and not run.finished else run.scores()
    return scores[scores.task.map(run.headline()) == scores.metric + "," + scores["filter"]]


def headline_scores(run: StoredRun) -> pd.DataFrame:
    """The same, of documents only."""
    scores = headline_rows(run)
    return scores[scores.doc_id.notna()].astype({"doc_id": int})


def interval_columns(name: str, interval: Interval | None) -> dict[str, float]:
    """A figure and its interval as the columns NAME, NAME_low and NAME_high."""
    known = interval or Interval(np.nan, np.nan, np.nan)
    return {name: known.value, f"{name}_low": known.low, f"{name}_high": known.high}


def share_columns(name: str, part: "pd.Series[float]", whole: "pd.Series[float]") -> dict[str, float]:
    """Σ part / Σ whole over documents, of counts of which one is part of the other, as the columns of an interval.

    A share of 0 has no interval, and of nothing there is no share. Documents with nothing to count are left out.
    """
    known = whole > 0
    share = pooled_rate(part[known].to_numpy(float), whole[known].to_numpy(float))
    if share is None:
        return interval_columns(name, Interval(0.0 if known.any() else np.nan, np.nan, np.nan))
    return interval_columns(name, replace(share, high=share.high if np.isnan(share.high) else min(share.high, 1.0)))


def by_task(rows: pd.DataFrame, tasks: Sequence[str], together: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each task that has any, then all rows under the name `together` if there are several tasks."""
    present = [task for task in tasks if (rows.task == task).any()]
    for task in present:
        yield task, rows[rows.task == task]
    if len(present) > 1:
        yield together, rows


def per_document(samples: pd.DataFrame, rounds: RowGroups) -> pd.DataFrame:
    """Counts and times of every timed sample, indexed by repeat, task, document and method.

    Counts: D drafted, A accepted, J rejections, S rescued, C committed, F target forwards, G draft forwards, B those of
    branches, R rounds; E drafted after the end of the text.
    Seconds: `prefill`, `decode`, `target`, `draft` and `arbitrator` (in their forwards), `models` (in all forwards),
    `masks` (of a constraint, outside forwards).
    `decoded` tokens took `decode` seconds; `whole_tokens`, which include the prefill's, took `whole` seconds; `batched`
    is the text's share of the seconds of a batch, where other texts are timed alone. `memory` is in bytes, and `cut` is
    1 if the limit of new tokens ended the text.
    """
    index = timed_samples(samples).set_index(SAMPLE)
    counts = _of_texts(rounds)
    counts = counts.reindex(index.index, fill_value=0).astype(float)
    # Imported runs have the first two, runs in batches the last.
    imported = index.reindex(columns=["new_tokens", "wall_seconds", "batch_seconds"]).astype(float)
    decoded = counts.C.fillna(imported.new_tokens - 1)
    return counts.assign(
        prefill=index.prefill_seconds,
        decode=index.decode_seconds,
        batched=imported.batch_seconds,
        memory=index.peak_memory,
        cut=(index.finish == "length").where(index.finish.notna()).astype(float),
        decoded=decoded,
        whole=imported.wall_seconds.fillna(index.prefill_seconds + index.decode_seconds),
        whole_tokens=imported.new_tokens.fillna(decoded + 1),
    )


def _of_texts(rounds: RowGroups) -> "pd.DataFrame":
    """The sums of COUNTS and E by SAMPLE; rounds are read for them once."""
    if (known := _KNOWN.get(rounds)) is None:
        counts = _sums(rounds, SAMPLE, COUNTS | {"N": _field("truncated").is_null().cast(pa.int32())}).set_index(SAMPLE)
        after = _after_the_end(rounds).reindex(counts.index, fill_value=0)
        known = _KNOWN[rounds] = counts.assign(E=after.where(counts.N == 0)).drop(columns="N")
    return known


def _after_the_end(rounds: RowGroups) -> "pd.Series[float]":
    """How many drafted tokens stand after the end of each text of which the end cut some, by SAMPLE.

    A recorded decision is `cut` there. Chains without decisions have drafted one token for each that they could commit.
    """
    cut = ~_field("warmup") & (_field("round") > 0) & (_field("truncated") > 0)
    rows = rounds.to_table(columns=[*SAMPLE, "drafted", "committed", "decisions"], filter=cut).to_pandas()
    after = rows.drafted.astype(float) - rows.committed.astype(float)
    recorded = rows.decisions.notna()
    after[recorded] = [float((decisions == CUT).sum()) for decisions in rows.decisions[recorded]]
    return rows.assign(E=after).groupby(SAMPLE).E.agg(lambda counts: counts.sum(skipna=False))


def depths(rounds: RowGroups, by_document: bool = False) -> pd.DataFrame:
    """How many rounds (R) had a draft of D levels and accepted A of them, by task and method, or also by document.

    `cut` marks rounds that ended the text. For a tree, D counts the levels that the verified path met. Rounds whose D
    or A is not recorded are left out.
    """
    by = {"D": _levels, "A": _field("accepted"), "cut": pc.coalesce(_field("truncated"), pc.scalar(0)) > 0}
    keys = ["task", "doc_id", "method"] if by_document else ["task", "method"]
    return _sums(rounds, [*keys, *by], {"R": _ones}, by, _levels.is_valid() & _field("accepted").is_valid())


def at_depth(counts: pd.DataFrame, depth: int) -> "tuple[pd.Series[bool], pd.Series[bool]]":
    """Which rows of `depths` accepted the draft at a depth, and which tested it."""
    passed = counts["A"] >= depth
    rejected = (counts["A"] == depth - 1) & ~counts["cut"]
    return passed, (counts["D"] >= depth) & (passed | rejected)


def acceptance_by_depth(counts: pd.DataFrame) -> pd.DataFrame:
    """`cond_accept` and `joint_accept` at each depth k = 1, 2, …, with the number of drafts `tested` there.

    `counts` are rows of `depths` for one task and method. Drafted tokens after the end of the text were not tested.
    """
    rounds = counts["R"]
    rows = []
    for k in range(1, int(counts["D"].max() if len(counts) else 0) + 1):
        passed, reached = at_depth(counts, k)
        joint, tested = rounds[passed].sum(), rounds[reached].sum()
        cond = joint / tested if tested else np.nan
        rows.append({"depth": k, "cond_accept": cond, "joint_accept": joint / rounds.sum(), "tested": tested})
    return pd.DataFrame(rows, columns=DEPTH)


def _sums(
    rounds: RowGroups,
    keys: Sequence[str],
    values: Mapping[str, pc.Expression],
    computed_keys: Mapping[str, pc.Expression] = MappingProxyType({}),
    known: pc.Expression | None = None,
) -> pd.DataFrame:
    """Sums over the decoding rounds by `keys`, a batch at a time; a missing value makes its sum missing.

    Only rounds for which `known` is true count.
    """
    columns = {key: _field(key) for key in keys if key not in computed_keys} | {**computed_keys, **values}
    option = pc.ScalarAggregateOptions(skip_nulls=False)
    sums = [(name, "sum", option) for name in values]
    renamed = [*keys, *values]

    def grouped(table: pa.Table) -> pa.Table:
        return table.group_by(keys, use_threads=False).aggregate(sums).select([*keys, *(f"{n}_sum" for n in values)])

    def of_stretches(batch: pa.RecordBatch) -> pa.Table:
        """The same of rounds that stand together, which takes a fraction of the time."""
        starts = records.stretches(batch, keys)
        if len(starts) > batch.num_rows // 4:
            return grouped(records.uncoded(pa.Table.from_batches([batch])))
        columns = {key: batch[key].take(pa.array(starts)) for key in keys}
        table = pa.table(columns | {f"{name}_sum": _stretch_sums(batch[name], starts) for name in values})
        return records.uncoded(table)

    decoding = ~_field("warmup") & (_field("round") > 0)
    decoding = decoding if known is None else decoding & known
    batches = rounds.to_batches(columns=columns, filter=decoding, coded=("task", "method"))
    parts = [of_stretches(batch).rename_columns(renamed) for batch in batches if batch.num_rows]
    if not parts:
        return pd.DataFrame(columns=renamed)
    return grouped(pa.concat_tables(parts)).rename_columns(renamed).to_pandas()


def _stretch_sums(values: pa.Array, starts: NDArray[np.int64]) -> pa.Array:
    """The sum of the numbers from each start to the next; null if one of them is."""
    kind = pa.float64() if pa.types.is_floating(values.type) else pa.int64()
    if values.null_count == len(values):
        return pa.nulls(len(starts), kind)
    unknown = None
    if values.null_count:
        unknown = np.logical_or.reduceat(values.is_null().to_numpy(zero_copy_only=False), starts)
        values = values.fill_null(0)
    return pa.array(np.add.reduceat(values.to_numpy(), starts, dtype=kind.to_pandas_dtype()), kind, mask=unknown)


def rates(counts: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Pooled rates of `per_document` counts, a row for each group; undefined rates are NaN.

    Times of a group in which some texts were decoded in a batch, untimed, are those of the others.
    """
    whole, timed = rates_of(counts, by), rates_of(timed_alone(counts), by)
    times = {name: timed[name].reindex(whole.index) for name in TIMES}
    return whole.assign(**times, tokens_per_s_batch=_batch_speeds(counts, by))


def timed_alone(counts: pd.DataFrame) -> pd.DataFrame:
    """The texts but for those that were decoded in a batch while others were timed alone."""
    return counts[counts.decode.notna() | counts.batched.isna()]


def _batch_speeds(counts: pd.DataFrame, by: Sequence[str]) -> "pd.Series[float]":
    """Tokens a second of a batch, from the texts that were decoded in one next to others that were timed alone."""
    totals = counts[counts.batched.notna()].groupby(list(by), sort=False)[["decoded", "batched"]].sum()
    return totals.decoded / totals.batched.replace(0, np.nan)


def rates_of(counts: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """`rates` of texts that were all timed alike."""
    speeds = {
        "speed": counts.decoded / counts.decode.replace(0, np.nan),
        "whole_speed": counts.whole_tokens / counts.whole.replace(0, np.nan),
        "of_text": counts.C / counts.R.replace(0, np.nan),
    }
    grouped = counts.assign(**speeds).groupby(list(by), sort=False)
    unknown = counts.isna().groupby(list(by), sort=False).any()
    total = grouped[SUMMED].sum().mask(unknown[SUMMED])
    return pd.DataFrame(
        {
            "acceptance_rate": total.A / total.D.replace(0, np.nan),
            "acceptance_rate_in_text": total.A / (total.D - total.E).replace(0, np.nan),
            "alpha": total.A / (total.A + total.J).replace(0, np.nan),
            "tau": total.C / total.R.replace(0, np.nan),
            "tau_mean": grouped.of_text.mean().mask(unknown.C | unknown.R),
            "discard_rate": (total.D - total.A) / total.C.replace(0, np.nan),
            "verification_rate": total.F / total.C.replace(0, np.nan),
            "rescue_rate": total.S / total.D.replace(0, np.nan),
            "tokens_per_s": total.decoded / total.decode.replace(0, np.nan),
            "tokens_per_s_mean": grouped.speed.mean().mask(unknown.decoded | unknown.decode),
            "tokens_per_s_e2e": total.whole_tokens / total.whole.replace(0, np.nan),
            "tokens_per_s_e2e_mean": grouped.whole_speed.mean().mask(unknown.whole | unknown.whole_tokens),
            "arbitrator_share": total.arbitrator / total.decode.replace(0, np.nan),
            "overhead": 1 - total.models / total.decode.replace(0, np.nan),
            "peak_memory": grouped.memory.max().mask(unknown.memory),
        }
    )


def drift(baseline: pd.DataFrame) -> float:
    """The relative change of the baseline's median seconds per token from the first half of a run to the second."""
    per_token = (baseline.decode / baseline.decoded.replace(0, np.nan)).dropna().to_numpy()
    if len(per_token) < 10:
        return 0.0
    first, second = np.array_split(per_token, 2)
    return float(np.median(second) / np.median(first) - 1)
