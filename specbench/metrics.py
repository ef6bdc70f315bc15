"""Records into rates: pure functions over the tables of a run. Definitions: the README's table of columns.

Warm-up samples and failed ones are left out, and so is round 0 (the prefill) of every sample.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from specbench.stats import Interval, speedup

SAMPLE = ["repeat", "task", "doc_id", "method"]
ROUND_COLUMNS = [
    "round",
    "drafted",
    "accepted",
    "rescued",
    "committed",
    "truncated",
    "target_forwards",
    "draft_forwards",
    "target_seconds",
    "draft_seconds",
]
DRIFT_BOUND = 0.10  # a baseline whose time per token moved by more than this between the halves of a run is flagged


def per_document(samples: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """Counts and times of every timed sample, indexed by repeat, task, document and method.

    D drafted, A accepted, J rejections, S rescued, C committed, F and G target and draft forwards, R rounds, and
    seconds: `prefill`, `decode`, `inside` (in forwards).
    """
    timed = samples[~samples.warmup & (samples.finish != "error")]
    index = timed.set_index(SAMPLE)
    decoding = rounds[~rounds.warmup & (rounds["round"] > 0)]
    rejected = (decoding.truncated == 0) & (decoding.accepted < decoding.drafted)
    columns = decoding[SAMPLE].assign(
        D=decoding.drafted,
        A=decoding.accepted,
        J=rejected.astype(int),
        S=decoding.rescued,
        C=decoding.committed,
        F=decoding.target_forwards,
        G=decoding.draft_forwards,
        R=1,
        inside=decoding.target_seconds + decoding.draft_seconds,
    )
    counts = columns.groupby(SAMPLE, sort=False).sum().reindex(index.index, fill_value=0)
    return counts.assign(prefill=index.prefill_seconds, decode=index.decode_seconds, memory=index.peak_memory)


def rates(counts: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Pooled rates of `per_document` counts, a row for each group; undefined ones are NaN."""
    grouped = counts.assign(speed=counts.C / counts.decode.replace(0, np.nan)).groupby(list(by), sort=False)
    total = grouped[["D", "A", "J", "S", "C", "F", "G", "R", "inside", "prefill", "decode"]].sum()
    total = total.astype(float)
    return pd.DataFrame(
        {
            "documents": grouped.size(),
            "acceptance_rate": total.A / total.D.replace(0, np.nan),
            "alpha": total.A / (total.A + total.J).replace(0, np.nan),
            "tau": total.C / total.R.replace(0, np.nan),
            "discard_rate": (total.D - total.A) / total.C.replace(0, np.nan),
            "verification_rate": total.F / total.C.replace(0, np.nan),
            "rescue_rate": total.S / total.D.replace(0, np.nan),
            "tokens_per_s": total.C / total.decode.replace(0, np.nan),
            "tokens_per_s_mean": grouped.speed.mean(),
            "overhead": 1 - total.inside / total.decode.replace(0, np.nan),
            "peak_memory": grouped.memory.max(),
        }
    )


def speedups(counts: pd.DataFrame, task: str, method: str, baseline: str) -> tuple[Interval | None, Interval | None]:
    """Decode and end-to-end speedup over the baseline, on the documents that both finished; repeats are added up."""
    sums = counts.assign(first=1).groupby(["task", "method", "doc_id"])[["C", "first", "prefill", "decode"]].sum()
    if (task, method) not in sums.index.droplevel(2) or (task, baseline) not in sums.index.droplevel(2):
        return None, None
    mine, base = sums.loc[(task, method)], sums.loc[(task, baseline)]
    shared = mine.index.intersection(base.index)
    mine, base = mine.loc[shared].astype(float), base.loc[shared].astype(float)
    mine_all, base_all = mine.prefill + mine.decode, base.prefill + base.decode
    decode = speedup(base.decode.to_numpy(), base.C.to_numpy(), mine.decode.to_numpy(), mine.C.to_numpy())
    base_tokens, my_tokens = base.C + base["first"], mine.C + mine["first"]  # a prefill commits one token
    whole = speedup(base_all.to_numpy(), base_tokens.to_numpy(), mine_all.to_numpy(), my_tokens.to_numpy())
    return decode, whole


def drift(counts: pd.DataFrame, baseline: str) -> float:
    """How far the baseline's median seconds per token moved between the first and the second half of a run."""
    mine = counts[counts.index.get_level_values("method") == baseline]
    per_token = (mine.decode / mine.C.replace(0, np.nan)).dropna().to_numpy()
    if len(per_token) < 10:
        return 0.0
    first, second = np.array_split(per_token, 2)
    return float(np.median(second) / np.median(first) - 1)


def summarize(
    samples: pd.DataFrame,
    rounds: pd.DataFrame,
    scores: pd.DataFrame,
    headline: dict[str, str],
    methods: Sequence[str],
    baseline: str | None,
) -> pd.DataFrame:
    """One row per task and method: accuracy by the task's headline metric, rates, and speedups with their intervals.

    `headline` maps each task to its metric as lm-eval's `name,filter`.
    """
    counts = per_document(samples, rounds)
    table = rates(counts, ["task", "method"])
    failed = samples[~samples.warmup & (samples.finish == "error")].groupby(["task", "method"]).size()
    rows = []
    for task, method in itertools.product(headline, methods):
        row: dict[str, object] = {"task": task, "method": method, "errors": int(failed.get((task, method), 0))}
        metric, _, filter_name = headline[task].partition(",")
        mine = scores[(scores.task == task) & (scores.method == method) & scores.doc_id.isna()]
        mine = mine[(mine.metric == metric) & (mine["filter"] == filter_name)]
        row |= {"metric": headline[task], "accuracy": mine.value.mean(), "accuracy_stderr": mine.stderr.mean()}
        known = (task, method) in table.index
        row |= table.loc[(task, method)].to_dict() if known else {**dict.fromkeys(table, np.nan), "documents": 0}
        decode, whole = speedups(counts, task, method, baseline) if baseline else (None, None)
        for name, interval in (("speedup_decode", decode), ("speedup_e2e", whole)):
            row[name] = interval.value if interval else np.nan
            row[f"{name}_low"] = interval.low if interval else np.nan
            row[f"{name}_high"] = interval.high if interval else np.nan
        row["drift"] = drift(counts.xs(task, level="task"), baseline) if baseline and len(counts) else 0.0
        rows.append(row | {"baseline": baseline or ""})
    return pd.DataFrame(rows)
