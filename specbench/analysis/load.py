"""What served requests say: latencies, goodput and rows, by method and rate."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from specbench.analysis.metrics import interval_columns
from specbench.base.stats import Interval, Paired, speedup

LATE = 0.25  # of the requests, the last ones, whose wait tells whether the queue grows
PERCENTILES = (50, 95, 99)
BLOCKS = 10  # of consecutive requests, into which each repeat is cut for intervals


@dataclass(frozen=True)
class Slo:
    """What a request must keep to count: seconds to its first token, and for each one after it."""

    ttft: float = float("inf")
    tpot: float = float("inf")


def latencies(requests: pd.DataFrame) -> pd.DataFrame:
    """For each request that was not ended by an error, in seconds: `wait` for a row, `ttft`, `e2e` and `tpot`.

    `ttft` and `e2e` are from when it came. `tpot` is the mean of the tokens after the first, NaN for a text of one.
    """
    decoded = requests[requests.finish != "error"]
    first = decoded.rounds.map(lambda rounds: rounds[0]).astype(float)
    last = decoded.rounds.map(lambda rounds: rounds[-1]).astype(float)
    after = (decoded.tokens.map(len) - 1).astype(float)
    return pd.DataFrame(
        {
            "wait": decoded.began - decoded.came,
            "ttft": first - decoded.came,
            "tpot": (last - first) / after.where(after > 0),
            "e2e": last - decoded.came,
        }
    )


def figures(requests: pd.DataFrame, steps: pd.DataFrame, slo: Slo) -> pd.DataFrame:
    """A row for each method and rate, over all repeats.

    Columns: `requests`, and `errors`, those that an exception ended, which count in nothing else; `seconds` from the
    first arrival to the last end; `tokens_per_s` of all, and `user_tokens_per_s` (median of 1 / tpot); `served`,
    requests a second; `wait`, `ttft`, `tpot`, `e2e` and `gap` (between two rounds of a text) at percentiles 50, 95 and
    99; `goodput`, requests a second that keep the SLO; `rows`, the mean number of texts that are decoded, and
    `in_system`, with those in the queue, over time; `stable`, see `is_stable`.
    """
    rows, requests = [], requests.reset_index(drop=True)
    for (method, rate), group in requests.groupby(["method", "rate"], sort=False):
        steps_there = steps[(steps.method == method) & (steps.rate == rate)]
        times, repeats = latencies(group), group.groupby("repeat")
        decoded = group.loc[times.index]
        seconds = float(_by_repeat(group).seconds.sum())
        gaps = np.concatenate([np.diff(rounds) for rounds in decoded.rounds] or [np.empty(0)])
        kept = (times.ttft <= slo.ttft) & ~(times.tpot > slo.tpot)
        row = {"method": method, "rate": rate, "requests": len(group), "errors": len(group) - len(times)}
        sums = {"tokens_per_s": decoded.tokens.map(len).sum(), "served": len(times), "goodput": kept.sum()}
        sums |= {"rows": (steps_there.rows * steps_there.seconds).sum(), "in_system": times.e2e.sum()}
        row |= {"seconds": seconds} | {name: float(value) / (seconds or np.nan) for name, value in sums.items()}
        row |= {"user_tokens_per_s": float((1 / times.tpot).median())}
        for name, values in (*times.items(), ("gap", gaps)):
            known = np.asarray(values, float)
            known = known[~np.isnan(known)]
            quantiles = np.percentile(known, PERCENTILES) if len(known) else [np.nan] * len(PERCENTILES)
            row |= {f"{name}_p{percent}": value for percent, value in zip(PERCENTILES, quantiles, strict=True)}
        row["stable"] = all(is_stable(each) for _, each in repeats)
        rows.append(row)
    return pd.DataFrame(rows)


def is_stable(requests: pd.DataFrame) -> bool:
    """True if the queue does not grow: the last quarter waits for a row, in the median, less than a text takes."""
    times = latencies(requests)
    late = times.wait.iloc[-max(1, round(LATE * len(times))) :]
    return bool(late.median() <= (times.e2e - times.wait).median())


def speedups(table: pd.DataFrame, requests: pd.DataFrame, base: str) -> pd.DataFrame:
    """The table with `throughput_ratio` and `sooner`, each with its 95 % interval, against `base` at the same rate.

    The first is of tokens a second, which a server that keeps up gives whatever the method; its interval is over
    repeats. The second is of the times from arrival to end, the base's over the method's, of the same requests; its
    interval is over BLOCKS of consecutive ones of each repeat, as requests wait for one another.
    """
    requests = requests.reset_index(drop=True)
    by_repeat = {key: _by_repeat(group) for key, group in requests.groupby(["method", "rate"], sort=False)}
    by_unit = {key: _blocks(group) for key, group in requests.groupby(["method", "rate"], sort=False)}
    columns = []
    for method, rate in zip(table.method, table.rate, strict=True):
        mine, of_base = by_unit[method, rate], by_unit[base, rate]
        both = mine.index.intersection(of_base.index)
        blocks = pd.DataFrame({"mine": mine.e2e[both], "base": of_base.e2e[both], "block": mine.block[both]})
        sums = blocks.groupby("block").sum()
        ones = np.ones(len(sums))
        sooner = speedup(Paired(sums.base.to_numpy(), ones, sums.mine.to_numpy(), ones)) if len(sums) else None
        faster = _throughput_ratio(by_repeat[method, rate], by_repeat[base, rate])
        same = Interval(1.0, 1.0, 1.0) if method == base else None
        columns.append(
            interval_columns("throughput_ratio", same or faster) | interval_columns("sooner", same or sooner)
        )
    return table.join(pd.DataFrame(columns, index=table.index))


def _by_repeat(requests: pd.DataFrame) -> pd.DataFrame:
    """Of a method at a rate, by repeat: `seconds` from the first arrival to the last end, and `tokens`."""
    decoded = requests[requests.finish != "error"]
    ends = decoded.rounds.map(lambda rounds: rounds[-1]).astype(float).groupby(decoded.repeat).max()
    tokens = decoded.tokens.map(len).astype(float).groupby(decoded.repeat).sum()
    return pd.DataFrame({"seconds": ends - requests.groupby("repeat").came.min(), "tokens": tokens}).dropna()


def _throughput_ratio(mine: pd.DataFrame, base: pd.DataFrame) -> Interval | None:
    """Tokens a second over the base's, with an interval over repeats."""
    both = mine.index.intersection(base.index)
    columns = (base.seconds[both], base.tokens[both], mine.seconds[both], mine.tokens[both])
    return speedup(Paired(*(column.to_numpy() for column in columns))) if len(both) else None


def _blocks(requests: pd.DataFrame) -> pd.DataFrame:
    """Of each request that was decoded, by repeat and number: `e2e`, and the number of its `block`."""
    count = int(requests.request.max()) + 1
    times = latencies(requests)
    of_them = requests.loc[times.index]
    block = of_them.repeat * BLOCKS + of_them.request * BLOCKS // count
    frame = pd.DataFrame({"e2e": times.e2e, "block": block, "repeat": of_them.repeat, "request": of_them.request})
    return frame.set_index(["repeat", "request"])


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
