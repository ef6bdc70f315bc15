"""Several runs in one table: a row for each pair, sampling, task and method, and their averages over tasks.

Runs of the same pair, sampling and method are pooled as repeats. Each method is compared with its baseline, document by
document, within the runs that hold both. Methods may have different baselines.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis import answers, metrics, workers
from specbench.analysis.pooled import ONCE, ROW, SETUP, Measured, measured
from specbench.base import scores as of_scores
from specbench.base import stats
from specbench.base.folder import member
from specbench.results import records
from specbench.results.check_manifest import SERVED
from specbench.results.stored import StoredRun

AVERAGE = "average"


def summary(runs: Measured) -> pd.DataFrame:
    """One row per pair, sampling, task and method, in the order of the runs, then the averages over tasks."""
    # Imported runs have no scores, so rows also come from the counts, and a server's totals have no counts.
    timed = runs.counts.index.droplevel([*ONCE, "doc_id"]).unique().to_frame(index=False)
    of_servers = pd.DataFrame(list(runs.totals), columns=ROW)
    present = pd.concat([runs.scores[ROW], timed, runs.errors.reset_index()[ROW], of_servers]).drop_duplicates()
    rates = metrics.rates(runs.counts, ROW)
    tables = []
    for _, setup in present.groupby(SETUP, sort=False):
        methods = [name for name in runs.methods if name in set(setup.method)]
        tasks = [task for task in runs.metric if task in set(setup.task)]
        cells = {}
        for task in tasks:
            for method in methods:
                row = (*setup.iloc[0][SETUP], task, method)
                if row in set(present.itertuples(index=False, name=None)):
                    cells[task, method] = _cell(runs, row, rates)
        tables += [cell.row for cell in cells.values()]
        if len(tasks) > 1:
            tables += [
                _average([cells[task, method] for task in tasks], runs.group)
                for method in methods
                if all((task, method) in cells for task in tasks)
            ]
    return pd.DataFrame(tables)


@dataclass(frozen=True)
class SummaryRow:
    """One row of the summary, with the figures by document that its average over tasks needs."""

    row: dict[str, Any]
    scored: int  # documents
    tokens: tuple[stats.Floats, stats.Floats]  # committed ones, and target rounds: τ
    times: stats.Paired | None
    whole_times: stats.Paired | None


def _cell(runs: Measured, key: tuple[str, ...], rates: pd.DataFrame) -> SummaryRow:
    nothing = runs.counts.iloc[:0].droplevel(ROW)
    baseline = runs.baselines.get(key[3], "")
    mine, base = runs.by_row.get(key, nothing), runs.by_row.get((*key[:3], baseline), nothing)
    row: dict[str, Any] = dict(zip(ROW, key, strict=True))
    row |= {
        "baseline": baseline,
        "metric": runs.metric[key[2]],
        "documents": mine.index.get_level_values("doc_id").nunique(),
        "repeats": len(mine.index.droplevel("doc_id").unique()),
        "errors": int(runs.errors.get(key, 0)),
        "cut": mine.cut.mean(),
        "empty": int(mine["empty"].sum()),
        "loops": int(mine.loops.sum()),
        "imported": not runs.imported.isdisjoint(mine.index.get_level_values("run")),
    }
    accuracy, scored = _accuracy(runs.scores, key, baseline)
    row |= accuracy
    row |= rates.loc[key].to_dict() if key in rates.index else dict.fromkeys(rates, np.nan)
    if workers.unlike(mine):
        row |= dict.fromkeys(metrics.SPEEDS, np.nan)
    row |= dict.fromkeys(SERVED, np.nan)
    if parts := runs.totals.get(key):
        from specbench.analysis import totals

        row |= totals.served(parts)
        row |= {name: value for name, value in totals.rates(parts).items() if math.isnan(row[name])}
    sums = mine[["C", "R"]].groupby("doc_id").sum(min_count=1)
    tokens = sums["C"].to_numpy(float), sums["R"].to_numpy(float)
    row |= _tau_interval(stats.pooled_rate(*tokens))
    times, whole_times = paired(mine, base), paired(mine, base, whole=True)
    row |= _speedup_columns("speedup_decode", stats.speedup(times) if times else None)
    row |= _speedup_columns("speedup_e2e", stats.speedup(whole_times) if whole_times else None)
    compared = times or whole_times
    row["compared"] = len(compared.seconds) if compared else 0
    row["speedup_spread"] = _spread(mine, base) if row["repeats"] > 1 else np.nan
    row["drift"] = max((metrics.drift(counts) for _, counts in base.groupby("run")), key=abs, default=0.0)
    row |= _limit_share(mine)
    return SummaryRow(row, scored, tokens, times, whole_times)


def _speedup_columns(name: str, speedup: stats.Interval | None) -> dict[str, float]:
    return metrics.interval_columns(name, speedup) | {f"{name}_p": speedup.p if speedup else np.nan}


def _tau_interval(tau: stats.Interval | None) -> dict[str, float]:
    return {"tau_low": tau.low if tau else np.nan, "tau_high": tau.high if tau else np.nan}


def paired(mine: pd.DataFrame, base: pd.DataFrame, whole: bool = False) -> stats.Paired | None:
    """Times per document, added up over the passes in which both methods decoded it; `whole` includes the prefill.

    Both texts of a pass are of one worker, and neither is empty or a loop. Intervals are of documents within
    those that the same workers decoded.
    """
    columns = ["whole", "whole_tokens"] if whole else ["decode", "decoded"]  # seconds and tokens
    mine, base = (answers.fit(metrics.timed_alone(counts)) for counts in (mine, base))
    both = mine[columns].merge(base[columns], left_index=True, right_index=True, suffixes=("", "_base"))
    if both.empty or both.isna().any(axis=None):
        return None
    by_document = both.groupby("doc_id")
    sums = by_document.sum()
    names = (*(f"{name}_base" for name in columns), *columns)
    several = "worker" in mine and mine.worker.any()
    strata = pd.factorize(mine.worker.reindex(both.index).groupby("doc_id").agg(tuple))[0] if several else None
    base_seconds, base_tokens, seconds, tokens = (sums[name].to_numpy(float) for name in names)
    return stats.Paired(base_seconds, base_tokens, seconds, tokens, strata)


def _limit_share(mine: pd.DataFrame) -> dict[str, Any]:
    """The share of decode time that reading weights and caches takes at least, or why it is not known."""
    mine = metrics.timed_alone(mine)
    least, decode = mine.least.sum(skipna=False), mine.decode.sum(skipna=False)
    why = next((text for text in mine.unlimited if text), "")
    return {"limit_share": least / decode if decode else np.nan, "limit_unknown": why}


def _spread(mine: pd.DataFrame, base: pd.DataFrame) -> float:
    """The standard deviation of the decode speedup between passes."""
    pairs = [paired(counts, base) for _, counts in mine.groupby(ONCE)]
    speedups = [speedup.value for pair in pairs if pair and (speedup := stats.speedup(pair))]
    return float(np.std(speedups, ddof=1)) if len(speedups) > 1 else np.nan


def _accuracy(scores: pd.DataFrame, key: tuple[str, ...], baseline: str) -> tuple[dict[str, Any], int]:
    """The headline metric, and its difference from the baseline's on the same documents in the same passes.

    Also the number of documents that have a score.
    """
    here = scores[(scores[ROW[:3]] == list(key[:3])).all(axis=1)]
    mine = here[here.method == key[3]]
    whole, documents = mine[mine.doc_id.isna()], mine[mine.doc_id.notna()]
    per_document = documents.groupby("doc_id").value.mean()
    stderr = whole.stderr.mean()
    if len(whole) > 1:
        stderr = per_document.std(ddof=1) / np.sqrt(len(per_document)) if len(per_document) > 1 else np.nan
    value = whole.value.mean() if len(whole) == 1 else per_document.mean()
    row = metrics.interval_columns("accuracy", _score(value, stderr, per_document)) | {"accuracy_stderr": stderr}
    row["accuracy_spread"] = whole.value.std(ddof=1) if len(whole) > 1 else np.nan
    base = here[(here.method == baseline) & here.doc_id.notna()]
    both = documents.merge(base, on=[*ONCE, "doc_id"], suffixes=("", "_base"))
    if both.empty or key[3] == baseline:
        unknown = metrics.interval_columns("accuracy_delta", None) | {"accuracy_p": np.nan, "accuracy_test": ""}
        return row | unknown, len(per_document)
    means = both.groupby("doc_id")[["value", "value_base"]].mean().to_numpy(float).T
    row |= metrics.interval_columns("accuracy_delta", of_scores.change_interval(means[0] - means[1]))
    difference = stats.difference(*means)
    return row | {"accuracy_p": difference.p, "accuracy_test": difference.test}, len(per_document)


def _score(value: float, stderr: float, per_document: "pd.Series[float]") -> stats.Interval:
    """A task's score with its interval: from its documents, or from lm-eval's error if it is not their mean."""
    mean = of_scores.mean_score(per_document.to_numpy(float))
    if math.isclose(mean.value, value, abs_tol=1e-9):
        return stats.Interval(value, mean.low, mean.high)
    return stats.Interval(value, value - of_scores.Z * stderr, value + of_scores.Z * stderr)


def _average(cells: list[SummaryRow], group: str | None) -> dict[str, Any]:
    """The unweighted mean over tasks of accuracy, rates and speedups; counts are added up.

    The accuracy of lm-eval's `group` weighs each task by its documents.
    """
    table = pd.DataFrame([cell.row for cell in cells])
    first = cells[0].row
    numbers = table.select_dtypes("number")
    row = {**dict.fromkeys(first, np.nan), **numbers.mean(skipna=False).to_dict()}
    row |= {name: first[name] for name in (*SETUP, "method", "baseline", "repeats")}
    weights = [float(cell.scored) for cell in cells] if group and all(cell.scored for cell in cells) else None
    by = f", scores by documents as lm-eval's {group}" if weights else ""
    row |= {"task": AVERAGE, "metric": f"mean of {len(cells)} tasks{by}", "accuracy_test": "", "accuracy_p": np.nan}
    row |= {name: int(table[name].sum()) for name in ("documents", "errors", "empty", "loops", "compared")}
    shares = np.array(weights or [1.0] * len(cells)) / sum(weights or [len(cells)])
    row["accuracy_stderr"] = float(np.sqrt(((shares * table.accuracy_stderr) ** 2).sum(skipna=False)))
    row["accuracy_delta"] = float((shares * table.accuracy_delta).sum(skipna=False))
    scores = [stats.Interval(row.accuracy, row.accuracy_low, row.accuracy_high) for row in table.itertuples()]
    row |= metrics.interval_columns("accuracy", of_scores.average_score(scores, weights))
    row |= {"accuracy_delta_low": np.nan, "accuracy_delta_high": np.nan}  # no verdict is of an average
    row |= {"peak_memory": table.peak_memory.max(), "drift": max(table.drift, key=abs)}
    row |= {"speedup_spread": np.nan, "accuracy_spread": np.nan}
    row["imported"] = bool(table.imported.any())
    row["limit_unknown"] = next((text for text in table.limit_unknown if text), "")
    if table.tau_low.notna().all():
        row |= _tau_interval(stats.average_rate([cell.tokens for cell in cells]))
    for name, times in (
        ("speedup_decode", [cell.times for cell in cells]),
        ("speedup_e2e", [cell.whole_times for cell in cells]),
    ):
        known = [of_task for of_task in times if of_task]
        row |= _speedup_columns(name, stats.average_speedup(known) if len(known) == len(cells) else None)
    return row


def depth_table(runs: Measured) -> pd.DataFrame:
    """Acceptance at each draft position, a row for each pair, sampling, task, method and depth."""
    parts = []
    groups = dict(iter(runs.depths.groupby(ROW, sort=False)))  # in the order of the records, in which methods alternate
    tasks = list(dict.fromkeys(key[:3] for key in groups))
    for key in sorted(groups, key=lambda key: (tasks.index(key[:3]), runs.methods.index(key[3]))):
        table = metrics.acceptance_by_depth(groups[key])
        parts.append(_labelled(table, key))
    for key, of_server in runs.totals.items():
        if key not in groups:
            from specbench.analysis import totals

            parts.append(_labelled(totals.depths(of_server), key))
    parts = [table for table in parts if len(table)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*ROW, *metrics.DEPTH])


def _labelled(table: pd.DataFrame, key: tuple[str, ...]) -> pd.DataFrame:
    return table.assign(**dict(zip(ROW, key, strict=True)))[[*ROW, *table.columns]]


def write_summary(folder: Path) -> pd.DataFrame:
    """Write `summary.parquet` of a finished run and return its rows."""
    rows = summary(measured([StoredRun(folder)]))
    records.write_frame(member(folder, "summary.parquet"), rows)
    return rows
