"""Several runs in one table: a row for each pair, sampling, task and method, and their averages over tasks.

Runs of the same pair, sampling and method are pooled as repeats. Each method is compared with its baseline, document by
document, within the runs that hold both. Methods may have different baselines.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis import metrics, roofline, totals, workers
from specbench.analysis.alike import check_alike, method_labels, pair_labels
from specbench.base import scores as of_scores
from specbench.base import stats
from specbench.base.folder import member
from specbench.config import UserError
from specbench.results import records
from specbench.results.stored import StoredRun

SETUP = ["pair", "sampling"]
ROW = [*SETUP, "task", "method"]
ONCE = ["run", "repeat"]  # one pass over the documents
AVERAGE = "average"


@dataclass(frozen=True)
class Measured:
    """The samples and scores of several runs, under common labels."""

    counts: pd.DataFrame  # of metrics.per_document, indexed by ROW, ONCE and doc_id
    scores: pd.DataFrame  # value and stderr of the tasks' headline metrics; columns ROW, ONCE and doc_id
    depths: pd.DataFrame  # of metrics.depths, with SETUP
    errors: pd.Series  # failed samples by ROW
    methods: list[str]  # in the order of the runs, but each baseline before the methods compared with it
    metric: dict[str, str]  # by task
    baselines: dict[str, str]  # by method; a method without a baseline has no entry
    totals: dict[tuple[str, ...], list[dict[str, Any]]]  # of servers, by ROW
    mismatches: list[str]  # differences that the user allowed, and facts that imported runs lack
    imported: frozenset[int]  # runs, by their number, whose methods did not take turns on one machine for all we know

    @cached_property
    def by_row(self) -> dict[tuple[str, ...], pd.DataFrame]:
        """The counts of each row of the summary, indexed by ONCE and doc_id."""
        return {key: part.droplevel(ROW) for key, part in self.counts.groupby(level=ROW, sort=False)}

    def against(self, baseline: str | None) -> "Measured":
        """A copy with one baseline for all methods, or with none. Raises UserError if there is no such method."""
        if baseline is not None and baseline not in self.methods:
            raise UserError(f"no method {baseline!r} in these runs; there are {', '.join(self.methods)}")
        return replace(self, baselines=dict.fromkeys(self.methods, baseline) if baseline else {})

    def joined(self, method: str, parts: Mapping[str, str]) -> "Measured":
        """A copy with one more method: on each task of `parts` what the method there measured."""
        tasks, methods = self.counts.index.get_level_values("task"), self.counts.index.get_level_values("method")
        counts = self.counts[[parts.get(task) == name for task, name in zip(tasks, methods, strict=True)]]
        scores = self.scores[[parts.get(row.task) == row.method for row in self.scores.itertuples()]]
        errors = self.errors[[parts.get(key[2]) == key[3] for key in self.errors.index]]
        baselines = {self.baselines[part] for part in parts.values() if part in self.baselines}
        return replace(
            self,
            counts=pd.concat([self.counts, _named(counts, method)]).sort_index(),
            scores=pd.concat([self.scores, scores.assign(method=method)], ignore_index=True),
            errors=pd.concat([self.errors, _named(errors, method)]),
            methods=[*self.methods, method],
            baselines=self.baselines | ({method: baselines.pop()} if len(baselines) == 1 else {}),
        )

    def only(self, tasks: Iterable[str]) -> "Measured":
        """A copy with only these tasks, so that averages are over them."""
        chosen = set(tasks)
        return replace(
            self,
            counts=self.counts[self.counts.index.isin(chosen, level="task")],
            scores=self.scores[self.scores.task.isin(chosen)],
            errors=self.errors[self.errors.index.isin(chosen, level="task")],
            metric={task: metric for task, metric in self.metric.items() if task in chosen},
            totals={row: parts for row, parts in self.totals.items() if row[2] in chosen},
        )


def _named(rows: Any, method: str) -> Any:
    """Rows with one method in their index."""
    index = rows.index.to_frame(index=False).assign(method=method)
    return rows.set_axis(pd.MultiIndex.from_frame(index))


def measured(
    runs: Sequence[StoredRun], allowed: Sequence[str] = (), with_depths: bool = False, unfinished: bool = False
) -> Measured:
    """Read runs for a comparison, with `unfinished` also those that have no scores yet.

    Raises UserError if they differ in what must agree and is not in `allowed`.
    """
    mismatches = check_alike(runs, allowed)
    labels = method_labels(runs)
    pairs = pair_labels(runs)
    counts, scores, depths, errors = [], [], [], []
    metric: dict[str, str] = {}
    of_servers: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for number, run in enumerate(runs):

        def labelled(rows: pd.DataFrame, number: int = number, sampling: str = run.sampling) -> pd.DataFrame:
            facts = {"pair": pairs[number], "sampling": sampling, "run": number}
            return rows.assign(**facts, method=rows.method.map(labels[number]))

        # First of all scores: a run that is unfinished or damaged is refused by them.
        scores.append(labelled(metrics.headline_rows(run, unfinished)))
        metric |= run.headline()
        for (task, name), parts in totals.totals(run).items():
            row = pairs[number], run.sampling, task, labels[number][name]
            of_servers.setdefault(row, []).extend(parts)
        samples, rounds = run.samples([*metrics.TIMED, *workers.WHO, "prompt_tokens"]), run.rounds()
        run_counts = metrics.per_document(samples, rounds)
        lengths = samples[~samples.warmup].set_index(metrics.SAMPLE).prompt_tokens
        run_counts = run_counts.join(workers.of_texts(run, samples))
        counts.append(labelled(run_counts.join(roofline.least_seconds(run, run_counts, lengths)).reset_index()))
        errors.append(labelled(samples[~samples.warmup & (samples.finish == "error")]))
        if with_depths:
            depths.append(labelled(metrics.depths(rounds)))
    baselines = _baselines(runs, labels)
    methods = dict.fromkeys(label for by_name in labels for label in by_name.values())
    return Measured(
        methods=_in_order(list(methods), baselines),
        counts=pd.concat(counts, ignore_index=True).set_index([*ROW, *ONCE, "doc_id"]).sort_index(),
        scores=pd.concat(scores, ignore_index=True),
        depths=pd.concat(depths, ignore_index=True) if depths else pd.DataFrame(),
        errors=pd.concat(errors, ignore_index=True).groupby(ROW).size(),
        metric=metric,
        baselines=baselines,
        totals=of_servers,
        mismatches=mismatches,
        imported=frozenset(number for number, run in enumerate(runs) if run.manifest.get("imported") is not None),
    )


def _baselines(runs: Sequence[StoredRun], labels: Sequence[dict[str, str]]) -> dict[str, str]:
    """The baseline of each method by label: from the first run that names one for it, else the first run's main one."""
    baselines: dict[str, str] = {}
    main: str | None = None
    for run, by_name in zip(runs, labels, strict=True):
        main = main or (by_name[run.plan.baseline] if run.plan.baseline else None)
        for name, label in by_name.items():
            if baseline := run.plan.against(name):
                baselines.setdefault(label, by_name[baseline])
    rest = {label: main for by_name in labels for label in by_name.values() if label not in baselines}
    return baselines | {label: base for label, base in rest.items() if base}


def _in_order(methods: list[str], baselines: dict[str, str]) -> list[str]:
    """Methods grouped by baseline, with the baseline first in its group; otherwise in the given order."""
    bases = dict.fromkeys(baselines.get(label) for label in methods)
    group_of = {label: label if label in bases else baselines.get(label) for label in methods}
    groups = list(dict.fromkeys(group_of.values()))
    return sorted(methods, key=lambda label: (groups.index(group_of[label]), label != group_of[label]))


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
                _average([cells[task, method] for task in tasks])
                for method in methods
                if all((task, method) in cells for task in tasks)
            ]
    return pd.DataFrame(tables)


@dataclass(frozen=True)
class Cell:
    """One row of the summary, with the figures by document that its average over tasks needs."""

    row: dict[str, Any]
    tokens: tuple[stats.Floats, stats.Floats]  # committed ones, and target rounds: τ
    times: stats.Paired | None
    whole_times: stats.Paired | None


def _cell(runs: Measured, key: tuple[str, ...], rates: pd.DataFrame) -> Cell:
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
        "imported": not runs.imported.isdisjoint(mine.index.get_level_values("run")),
    }
    row |= _accuracy(runs.scores, key, baseline)
    row |= rates.loc[key].to_dict() if key in rates.index else dict.fromkeys(rates, np.nan)
    if workers.unlike(mine):
        row |= dict.fromkeys(metrics.SPEEDS, np.nan)
    parts = runs.totals.get(key, [])
    row |= totals.served(parts)
    if parts:
        row |= {name: value for name, value in totals.rates(parts).items() if math.isnan(row[name])}
    sums = mine[["C", "R"]].groupby("doc_id").sum(min_count=1)
    tokens = sums["C"].to_numpy(float), sums["R"].to_numpy(float)
    row |= _tau_interval(stats.pooled_rate(*tokens))
    times, whole_times = paired(mine, base), paired(mine, base, whole=True)
    row |= _speedup_columns("speedup_decode", stats.speedup(times) if times else None)
    row |= _speedup_columns("speedup_e2e", stats.speedup(whole_times) if whole_times else None)
    row["speedup_spread"] = _spread(mine, base) if row["repeats"] > 1 else np.nan
    row["drift"] = max((metrics.drift(counts) for _, counts in base.groupby("run")), key=abs, default=0.0)
    row |= _limit_share(mine)
    return Cell(row, tokens, times, whole_times)


def _speedup_columns(name: str, speedup: stats.Interval | None) -> dict[str, float]:
    return metrics.interval_columns(name, speedup) | {f"{name}_p": speedup.p if speedup else np.nan}


def _tau_interval(tau: stats.Interval | None) -> dict[str, float]:
    return {"tau_low": tau.low if tau else np.nan, "tau_high": tau.high if tau else np.nan}


def paired(mine: pd.DataFrame, base: pd.DataFrame, whole: bool = False) -> stats.Paired | None:
    """Times per document, added up over the passes in which both methods decoded it; `whole` includes the prefill.

    Both texts of a pass are of one worker. Intervals are of documents within those that the same workers decoded.
    """
    columns = ["whole", "whole_tokens"] if whole else ["decode", "decoded"]  # seconds, tokens
    mine, base = metrics.timed_alone(mine), metrics.timed_alone(base)
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


def _accuracy(scores: pd.DataFrame, key: tuple[str, ...], baseline: str) -> dict[str, Any]:
    """The headline metric, and its difference from the baseline's on the same documents in the same passes."""
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
        return row | metrics.interval_columns("accuracy_delta", None) | {"accuracy_p": np.nan, "accuracy_test": ""}
    means = both.groupby("doc_id")[["value", "value_base"]].mean().to_numpy(float).T
    row |= metrics.interval_columns("accuracy_delta", of_scores.change_interval(means[0] - means[1]))
    difference = stats.difference(*means)
    return row | {"accuracy_p": difference.p, "accuracy_test": difference.test}


def _score(value: float, stderr: float, per_document: "pd.Series[float]") -> stats.Interval:
    """A task's score with its interval: from its documents, or from lm-eval's error if it is not their mean."""
    mean = of_scores.mean_score(per_document.to_numpy(float))
    if math.isclose(mean.value, value, abs_tol=1e-9):
        return stats.Interval(value, mean.low, mean.high)
    return stats.Interval(value, value - of_scores.Z * stderr, value + of_scores.Z * stderr)


def _average(cells: list[Cell]) -> dict[str, Any]:
    """The unweighted mean over tasks of accuracy, rates and speedups; counts are added up."""
    table = pd.DataFrame([cell.row for cell in cells])
    first = cells[0].row
    numbers = table.select_dtypes("number")
    row = {**dict.fromkeys(first, np.nan), **numbers.mean(skipna=False).to_dict()}
    row |= {name: first[name] for name in (*SETUP, "method", "baseline", "repeats")}
    row |= {"task": AVERAGE, "metric": f"mean of {len(cells)} tasks", "accuracy_test": "", "accuracy_p": np.nan}
    row |= {"documents": int(table.documents.sum()), "errors": int(table.errors.sum())}
    row["accuracy_stderr"] = float(np.sqrt((table.accuracy_stderr**2).sum(skipna=False)) / len(cells))
    scores = [stats.Interval(row.accuracy, row.accuracy_low, row.accuracy_high) for row in table.itertuples()]
    row |= metrics.interval_columns("accuracy", of_scores.average_score(scores))
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
    from_rounds = {key for key, counts in groups.items() if counts["D"].notna().any()}
    for key in sorted(groups, key=lambda key: (tasks.index(key[:3]), runs.methods.index(key[3]))):
        table = metrics.acceptance_by_depth(groups[key])
        parts.append(_labelled(table, key))
    counted = [(key, totals.depths(of_server)) for key, of_server in runs.totals.items() if key not in from_rounds]
    parts += [_labelled(table, key) for key, table in counted if len(table)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*ROW, *metrics.DEPTH])


def _labelled(table: pd.DataFrame, key: tuple[str, ...]) -> pd.DataFrame:
    return table.assign(**dict(zip(ROW, key, strict=True)))[[*ROW, *table.columns]]


def write_summary(folder: Path) -> pd.DataFrame:
    """Write `summary.parquet` of a finished run and return its rows."""
    rows = summary(measured([StoredRun(folder)]))
    records.write_frame(member(folder, "summary.parquet"), rows)
    return rows
