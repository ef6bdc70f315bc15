"""What requests to servers took: times at percentiles, goodput and throughput, by method and task."""

from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis.load import PERCENTILES, Slo
from specbench.config import UserError
from specbench.results.stored import StoredRun

TIMES = ("ttft", "tpot", "gap", "e2e")
COLUMNS = [
    *("repeat", "task", "doc_id", "method", "warmup", "finish", "new_tokens"),
    *(
        "decode_seconds",
        "due",
        "sent",
        "first_token",
        "ended",
        "chunks",
        "evidence",
        "verify_rounds",
        "accepted_tokens",
    ),
]


def least(percent: int) -> int:
    """The requests that a percentile needs: with fewer, it is the largest of them or hardly below it."""
    return round(100 / (100 - percent)) if percent > 50 else 1


def request_figures(run: StoredRun, slo: Slo) -> pd.DataFrame:
    """A row for each server and task.

    Columns: `requests` that were answered, `failed` ones; `ttft` and `e2e` from when each was due, `tpot` (from the
    tokens' number, where the first did not come with later ones) and `gap` (between chunks, which may hold several
    tokens) in seconds at percentiles 50, 95 and 99, NaN where there are fewer than `least`; `user_tokens_per_s`, the
    median of 1 / tpot; `tokens_per_s` and `served` a second of the time in which any request was due that was answered
    later; `goodput` (requests that keep the SLO) a second of the same time with failed requests; `evidence`, and
    `per_round`, accepted tokens by round, NaN if it is not known.

    Raises:
        UserError: the run has no servers.
    """
    names = [spec.name for spec in run.plan.servers]
    if not names:
        raise UserError(f"{run.folder} has no servers; `specbench run --server NAME=URL` measures some")
    samples = run.samples(COLUMNS)
    samples = samples[~samples.warmup & samples.method.isin(names)]
    groups = samples.groupby(["task", "method"], sort=False)
    return pd.DataFrame([{"task": task, "method": name} | _row(group, slo) for (task, name), group in groups])


def _row(group: pd.DataFrame, slo: Slo) -> dict[str, Any]:
    done = group[group.finish != "error"]
    after = (done.new_tokens.astype(float) - 1).where(done.new_tokens > 1)
    last = done.chunks.map(lambda chunks: chunks[-1] if len(chunks) else np.nan)
    ttft, tpot = done.first_token - done.due, done.decode_seconds.astype(float) / after
    most = tpot.fillna((last - done.sent) / after)  # where the first token came with later ones
    gaps = [np.diff(chunks) for chunks in done.chunks]
    times = {"ttft": ttft, "tpot": tpot, "gap": np.concatenate(gaps) if gaps else [], "e2e": done.ended - done.due}
    busy, waited = (union(rows[["due", "ended"]].dropna().to_numpy()) for rows in (done, group))
    kept = (ttft <= slo.ttft) & ~(most > slo.tpot)
    row: dict[str, Any] = {"requests": len(done), "failed": len(group) - len(done)}
    for name in TIMES:
        known = np.asarray(times[name], float)
        known = known[~np.isnan(known)]
        for percent in PERCENTILES:
            enough = len(known) >= least(percent)
            row[f"{name}_p{percent}"] = float(np.percentile(known, percent)) if enough else np.nan
    row |= {"user_tokens_per_s": float((1 / tpot).median()), "tokens_per_s": float(done.new_tokens.sum()) / busy}
    rounds = done.verify_rounds.sum() if (done.evidence != "chunks").all() and done.accepted_tokens.notna().all() else 0
    per_round = float(done.accepted_tokens.sum()) / rounds if rounds else np.nan
    evidence = ", ".join(dict.fromkeys(done.evidence.dropna()))
    return row | {
        "served": len(done) / busy,
        "goodput": kept.sum() / waited,
        "evidence": evidence,
        "per_round": per_round,
    }


def union(spans: Any) -> float:
    """The seconds that spans [n, 2] of begin and end cover together; NaN without any."""
    total, reached = 0.0, -np.inf
    for begin, end in sorted(map(tuple, spans)):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total or np.nan
