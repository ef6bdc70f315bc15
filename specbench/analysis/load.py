"""What served requests say: latencies, goodput and rows, by method and rate."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

LATE = 0.25  # of the requests, the last ones, whose wait tells whether the queue grows
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Slo:
    """What a request must keep to count: seconds to its first token, and for each one after it."""

    ttft: float = float("inf")
    tpot: float = float("inf")


def latencies(requests: pd.DataFrame) -> pd.DataFrame:
    """For each request, in seconds: `wait` for a row, `ttft` and `e2e` from when it came, and `tpot`.

    `tpot` is the mean of the tokens after the first, NaN for a text of one token.
    """
    first = requests.rounds.map(lambda rounds: rounds[0])
    last = requests.rounds.map(lambda rounds: rounds[-1])
    after = (requests.tokens.map(len) - 1).astype(float)
    return pd.DataFrame(
        {
            "wait": requests.began - requests.came,
            "ttft": first - requests.came,
            "tpot": (last - first) / after.where(after > 0),
            "e2e": last - requests.came,
        }
    )


def figures(requests: pd.DataFrame, steps: pd.DataFrame, slo: Slo) -> pd.DataFrame:
    """A row for each method and rate.

    Columns: `requests`; `seconds` from the first arrival to the last end; `tokens_per_s` of all, and
    `user_tokens_per_s` (median of 1 / tpot); `served`, requests a second; `wait`, `ttft`, `tpot`, `e2e` and `gap`
    (between two rounds of a text) at percentiles 50, 95 and 99; `goodput`, requests a second that keep the SLO; `rows`,
    the mean number of texts that are decoded, and `in_system`, with those in the queue, over time; `stable`, see
    `is_stable`.
    """
    rows = []
    for (method, rate), group in requests.groupby(["method", "rate"], sort=False):
        own = steps[(steps.method == method) & (steps.rate == rate)]
        times = latencies(group)
        seconds = float(max(rounds[-1] for rounds in group.rounds) - group.came.min())
        gaps = np.concatenate([np.diff(rounds) for rounds in group.rounds])
        kept = (times.ttft <= slo.ttft) & ~(times.tpot > slo.tpot)
        row = {"method": method, "rate": rate, "requests": len(group), "seconds": seconds}
        row |= {"tokens_per_s": group.tokens.map(len).sum() / seconds, "served": len(group) / seconds}
        row |= {"user_tokens_per_s": float((1 / times.tpot).median()), "goodput": kept.sum() / seconds}
        for name, values in (*times.items(), ("gap", gaps)):
            known = np.asarray(values, float)
            known = known[~np.isnan(known)]
            quantiles = np.percentile(known, PERCENTILES) if len(known) else [np.nan] * len(PERCENTILES)
            row |= {f"{name}_p{percent}": value for percent, value in zip(PERCENTILES, quantiles, strict=True)}
        row["rows"] = float((own.rows * own.seconds).sum() / seconds)
        row["in_system"] = float(times.e2e.sum() / seconds)
        row["stable"] = is_stable(group)
        rows.append(row)
    return pd.DataFrame(rows)


def is_stable(requests: pd.DataFrame) -> bool:
    """True if the queue does not grow: the last quarter waits for a row, in the median, less than a text takes."""
    times = latencies(requests)
    late = times.wait.iloc[-max(1, round(LATE * len(times))) :]
    return bool(late.median() <= (times.e2e - times.wait).median())


def speedups(table: pd.DataFrame, base: str) -> pd.DataFrame:
    """The table with `throughput_ratio` and `latency_ratio`, against `base` at the same rate.

    The first is of tokens a second, which a server that keeps up gives whatever the method. The second is of the
    medians of the time from a request's arrival to its end, the base's over the method's.
    """
    of_base = table[table.method == base].set_index("rate")
    tokens, e2e = (table.rate.map(of_base[name]) for name in ("tokens_per_s", "e2e_p50"))
    return table.assign(throughput_ratio=table.tokens_per_s / tokens, latency_ratio=e2e / table.e2e_p50)


def by_rows(steps: pd.DataFrame, base: str) -> pd.DataFrame:
    """What steps gave in which no text joined, by method and number of texts: `rows`.

    Columns: `steps`, their number; `tokens_per_s`; `speedup`, that over the base's at as many texts (NaN: it had none).
    """
    alone = steps[steps.joined == 0]
    sums = alone.groupby(["method", "rows"], as_index=False).agg(
        steps=("seconds", "size"), seconds=("seconds", "sum"), committed=("committed", "sum")
    )
    sums["tokens_per_s"] = sums.committed / sums.seconds
    of_base = sums[sums.method == base].set_index("rows").tokens_per_s
    sums["speedup"] = sums.tokens_per_s / sums["rows"].map(of_base)
    return sums[["method", "rows", "steps", "tokens_per_s", "speedup"]]
