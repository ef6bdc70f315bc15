"""What was measured on one pair, looked up by the labels of a paper's table, and formatted as the paper does."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd

from specbench.analysis import compare, metrics, pooled
from specbench.config import MethodSpec, PairSpec, UserError, task_info
from specbench.papers.published import Figure, Paper
from specbench.papers.texts import WITH_INTERVAL, Cell, gain, interval, number, text

MISSING = "not measured"
SPEEDS = ("speedup_e2e", "speedup_decode", "tokens_per_s")
COUNTED = [*"DAJSCFGRE", "prefill", "decode", "decoded", "whole", "whole_tokens"]  # of a document, for every verdict
FromFiles = Sequence[tuple[Figure, Path]]  # figures that come from no run, each with its file


class OnPair:
    """What was measured on one pair; `default` is the pair for papers that name no bundled ones.

    `runs` are the names of the runs in `measured`, by their number, and `sources` those that have a method's rows, by
    sampling, task and label. Without `labels`, by the identities of methods, a method's label is its name.
    """

    def __init__(
        self,
        pair: str,
        default: PairSpec,
        measured: pooled.Measured,
        figures: FromFiles,
        runs: Sequence[str] = (),
        sources: Mapping[tuple[str, str, str], list[str]] | None = None,
    ) -> None:
        self.pair, self.default, self.measured, self.runs = pair, default, measured, list(runs)
        self.labels: dict[str, str] | None = None
        self.kept: dict[str, str] = {}  # what stored documents call a label, where it is not the label
        self.sources = sources or {}
        self._of_files = {f.key(_place(f, f.task)): (f, path) for f, path in figures if f.pair == pair}
        self._summary = cache(self._summary_against)
        self._documents: dict[tuple[object, ...], pd.DataFrame] = {}

    def label(self, spec: MethodSpec) -> str | None:
        if self.labels is None:
            return spec.name if spec.name in self.measured.methods else None
        return self.labels.get(spec.identity)

    def label_of(self, paper: Paper, figure: Figure) -> str | None:
        """Our label of a figure's method; None if it was not run."""
        choice = paper.choice(figure.method, self.pair)
        by_task = choice.by_task if choice and not figure.settings else {}
        specs = {task: paper.method_spec(figure, self.pair, task) for task in by_task or [""]}
        parts = {task: label for task, spec in specs.items() if spec and (label := self.label(spec))}
        return self._joined(parts) if by_task and parts else parts.get("")

    def _joined(self, parts: dict[str, str]) -> str:
        """One label for a method whose settings differ by task: on each task it stands for the label there."""
        label = ", ".join(f"{part} on {task}" for task, part in parts.items())
        if label not in self.measured.methods:
            self.measured = self.measured.joined(label, parts)
            self._summary = cache(self._summary_against)
        return label

    def figures(self, paper: Paper, table: int) -> list[Figure]:
        """The figures of a table that this pair corresponds to."""
        return [figure for figure in paper.figures(table) if paper.pair_of(figure, self.default) == self.pair]

    def method(self, paper: Paper, table: int, name: str, setting: str | None = None) -> str | None:
        """Our label of a method with the settings that a table gives it; `setting` as printed, for one of its rows."""
        figures = [f for f in self.figures(paper, table) if (ref := paper.methods.get(f.method)) and ref.method == name]
        figures = [figure for figure in figures if setting in (None, figure.setting)]
        return next((label for figure in figures if (label := self.label_of(paper, figure))), None)

    def tasks(self, paper: Paper, label: str) -> tuple[str, ...]:
        """Our tasks that correspond to a paper's: itself, or the bundled ones that stand in for it, if all were run."""
        name = paper.tasks.get(label)
        if name is None or name in self.measured.metric:
            return (name,) if name else ()
        counterparts = task_info(name).counterparts
        return counterparts if set(counterparts) <= set(self.measured.metric) else ()

    def runs_of_all(self, sampling: str, task: str, labels: Sequence[str]) -> frozenset[int]:
        """The numbers of the runs that timed every one of some methods on a task."""
        passes = [self.measured.by_row.get((self.pair, sampling, task, label)) for label in labels]
        runs = [frozenset(metrics.timed_alone(of).index.unique("run")) for of in passes if of is not None]
        return frozenset.intersection(*runs) if len(runs) == len(labels) else frozenset()

    def documents(
        self, sampling: str, task: str, label: str, metric: str, runs: frozenset[int] = frozenset()
    ) -> pd.DataFrame:
        """Counts and times of a method's documents, added up over `passes`, and the mean score; the index is doc_id.

        For a metric of SPEEDS only the documents that were timed alone, if others were decoded in a batch. Times are in
        units of the baseline's time per token in the same passes: methods that were measured in different runs, hours
        apart, do not compare in seconds. With `runs` only the passes of these count.
        """
        key = (self.pair, sampling, task, label)
        known = self._documents.get((*key, metric in SPEEDS, runs))
        if known is not None:
            return known
        passes = self.measured.by_row.get(key)
        base = self.measured.by_row.get((*key[:3], self.measured.baselines.get(label, "")))
        if passes is None:
            return pd.DataFrame(columns=[*self.measured.counts, "score", "one", "passes"], dtype=float)
        if metric in SPEEDS:
            passes, base = metrics.timed_alone(passes), base if base is None else metrics.timed_alone(base)
        if runs:
            passes = passes[passes.index.get_level_values("run").isin(runs)]
        counts = passes.groupby("doc_id").sum()
        if base is None:  # its speed is not known
            counts[["decode", "whole"]] = math.nan
        else:
            same = _of_passes(base, passes)
            counts["decode"] /= same.decode.sum(min_count=1) / (same.decoded.sum() or math.nan)
            counts["whole"] /= same.whole.sum(min_count=1) / (same.whole_tokens.sum() or math.nan)
        scores = self.measured.scores
        of_row = scores[(scores[pooled.ROW] == list(key)).all(axis=1) & scores.doc_id.notna()]
        counts = counts.assign(one=1.0, passes=passes.groupby("doc_id").size())
        means = of_row.groupby(of_row.doc_id.astype(int)).value.mean().round(12)  # of equal scores: the score
        rows = counts.assign(score=means)
        return self._documents.setdefault((*key, metric in SPEEDS, runs), rows)

    def pace(self, sampling: str, task: str, label: str) -> float:
        """Seconds a token of a method's baseline, decoding alone, in the runs that the method's times are of."""
        key = (self.pair, sampling, task)
        passes = self.measured.by_row.get((*key, label))
        base = self.measured.by_row.get((*key, self.measured.baselines.get(label, "")))
        if passes is None or base is None:
            return math.nan
        same = _of_passes(metrics.timed_alone(base), metrics.timed_alone(passes))
        return float(same.decode.sum() / same.decoded.sum()) if same.decoded.sum() else math.nan

    def every_document(self) -> pd.DataFrame:
        """As Ours.every_document; `run` is the name of the run, and `baseline` that of the method's baseline."""
        key = [*pooled.ROW, *pooled.ONCE, "doc_id"]
        scores = self.measured.scores.dropna(subset="doc_id").astype({"doc_id": int}).set_index(key).value
        rows = self.measured.counts.join(scores.rename("score")).reset_index()
        names = dict(enumerate(self.runs))
        rows = rows.assign(run=rows.run.map(names), baseline=rows.method.map(self.measured.baselines))
        rows[["method", "baseline"]] = rows[["method", "baseline"]].replace(self.kept)
        return rows[[*pooled.ROW, "baseline", *pooled.ONCE, "doc_id", *COUNTED, "score"]]

    def cell(self, paper: Paper, figure: Figure) -> Cell:
        """Our figure in the unit and with the digits of the printed one: from runs, else from a file."""
        cell = self._from_runs(paper, figure)
        if cell.text != MISSING:
            return cell
        if known := self.of_file(paper, figure):
            return known
        of_table = {(f.paper, f.table, f.metric) for f, _ in self._of_files.values()}
        if (figure.paper, figure.table, figure.metric) in of_table:  # of other tasks or settings
            return replace(cell, reason=f"{figure.metric}: no figure of ours for {figure.task or figure.method}")
        return cell

    def _from_runs(self, paper: Paper, figure: Figure) -> Cell:
        over = paper.gains.get(figure.metric)
        metric = over.metric if over else paper.metrics.get(figure.metric)
        if metric is None:
            return Cell(MISSING, reason=f"{figure.metric}: no column of ours has this definition")
        spec = paper.method_spec(figure, self.pair)
        if spec is None:
            return Cell(MISSING, reason=paper.lacking(figure, self.pair))
        if not self.measured.baselines and metric in WITH_INTERVAL:
            return Cell(MISSING, reason="the runs have no baseline, so no speedup")
        label, sampling = self.label_of(paper, figure), paper.sampling_of(figure).name
        tasks = self.tasks(paper, figure.task)
        if figure.is_average:
            columns = self._columns(paper, figure.table)
            if not all(columns):
                return Cell(MISSING, reason=f"{figure.task}: the paper averages over tasks that were not run")
            if max(map(len, columns)) > 1:
                return Cell(MISSING, reason=f"{figure.task}: one of its tasks is itself an average of ours")
            tasks = tuple(name for names in columns for name in names)
        if not tasks:
            return Cell(MISSING, reason=f"{figure.task}: not a task of these runs")
        base = self._baseline(paper, figure.table, label)
        row = self._row(base, sampling, tasks, label)
        if row is None or pd.isna(row.get(metric, math.nan)):
            if row is None:
                return Cell(MISSING, reason=f"{figure.method}: not in these runs")
            setting = f" with {figure.setting}" if figure.setting else ""
            return Cell(MISSING, reason=f"{figure.method}{setting}: no {figure.metric} in its run")
        if not over:
            return Cell(text(row, metric, figure), self._runs(sampling, tasks, str(label)))
        other = self.method(paper, figure.table, over.over)
        second = self._row(base, sampling, tasks, other)
        if second is None or pd.isna(second.get(metric, math.nan)):
            return Cell(MISSING, reason=f"{figure.metric}: no {over.over} to compare with in these runs")
        direct = self._row(other, sampling, tasks, label)  # on the same documents, in the same run
        words = gain(row[metric] / second[metric], direct, metric, figure)
        return Cell(words, self._runs(sampling, tasks, str(label), str(other)))

    def of_file(self, paper: Paper, figure: Figure) -> Cell | None:
        """The figure that a file has for the task, or the mean of those for all tasks that stand in for it."""
        name = paper.tasks.get(figure.task)
        places = [(_place(figure, name or ""),), task_info(name).counterparts if name else ()]
        for tasks in places:
            keys = [key for task in tasks if (key := figure.key(task)) in self._of_files]
            ours = [self._of_files[key] for key in keys if _same_temperature(figure, self._of_files[key][0])]
            if ours and len(ours) == len(tasks):
                for other, path in ours:
                    if other.unit != figure.unit:
                        raise UserError(f"{path}: {figure.metric} is in {other.unit}; write it in {figure.unit}")
                projected = " projected" if figure.metric in paper.tables[figure.table].projected else ""
                bounds = (float(ours[0][0].low), float(ours[0][0].high)) if len(ours) == 1 and ours[0][0].low else None
                value = sum(float(f.value) for f, _ in ours) / len(ours)
                words = interval(figure, value, *bounds) if bounds else number(value, figure)
                return Cell(words + projected, tuple(dict.fromkeys(path.name for _, path in ours)), bounds=bounds)
        return None

    def _runs(self, sampling: str, tasks: Sequence[str], *labels: str) -> tuple[str, ...]:
        names = (name for t in tasks for label in labels for name in self.sources.get((sampling, t, label), []))
        return tuple(dict.fromkeys(names))

    def _columns(self, paper: Paper, table: int) -> list[tuple[str, ...]]:
        """Our tasks for each task that a table averages over; none for one that was not run."""
        return [self.tasks(paper, label) for label in labels_of(paper, table)]

    def _baseline(self, paper: Paper, table: int, label: str | None) -> str | None:
        """Our label of the baseline of a method's speedups: the method's, the table's, or one of that kind."""
        name = paper.tables[table].baseline or paper.baseline
        if self.labels is None:  # only names are known, which begin with the method's
            named = [label for label in self.measured.methods if label.partition("[")[0] == name]
        else:
            named = [label for identity, label in self.labels.items() if json.loads(identity)[0] == name]
        baseline = self.measured.baselines.get(label or "")
        return baseline if baseline in named else self.method(paper, table, name) or next(iter(named), None)

    def _row(self, baseline: str | None, sampling: str, tasks: tuple[str, ...], label: str | None) -> pd.Series | None:
        """A method's row for a task, or for the unweighted average of several; None if it has none."""
        table = self._summary(baseline, tasks)
        rows = table[(table.sampling == sampling) & (table.method == label)].set_index("task", drop=False)
        task = tasks[0] if len(tasks) == 1 else compare.AVERAGE
        return rows.loc[task] if {*tasks, task} <= set(rows.index) else None

    def _summary_against(self, baseline: str | None, tasks: tuple[str, ...]) -> pd.DataFrame:
        return compare.summary(self.measured.only(tasks).against(baseline))


def labels_of(paper: Paper, table: int) -> list[str]:
    """The paper's names of a table's tasks, without its average."""
    return list(dict.fromkeys(figure.task for figure in paper.figures(table) if not figure.is_average))


def _same_temperature(printed: Figure, ours: Figure) -> bool:
    """True if two figures have the same temperature, or one has none."""
    known = printed.temperature and ours.temperature
    return not known or float(printed.temperature) == float(ours.temperature)


def _of_passes(base: pd.DataFrame, passes: pd.DataFrame) -> pd.DataFrame:
    """The rows of a baseline that are of the same runs and repeats as a method's passes."""
    return base[base.index.droplevel("doc_id").isin(passes.index.droplevel("doc_id"))]


def _place(figure: Figure, task: str) -> str:
    """The task by which a figure is looked up in files; all averages have one name."""
    return compare.AVERAGE if figure.is_average else task
