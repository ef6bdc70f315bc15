"""A paper's table next to our own figures: the same cells, and `not measured` where there is none of ours."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import pandas as pd

from specbench import compare
from specbench.config import MethodSpec, UserError, task_info
from specbench.published import Figure, Paper
from specbench.report import tables
from specbench.stored import StoredRun

MISSING = "not measured"
SCALES = {"%": 100.0, "GB": 1e-9, "MB": 1e-6}  # from our columns to a printed unit
WITH_INTERVAL = ("speedup_decode", "speedup_e2e")


@dataclass(frozen=True)
class Cell:
    """Our counterpart of a figure, or why there is none."""

    text: str
    runs: tuple[str, ...] = ()
    reason: str = ""


class Ours:
    """What runs of one pair measured, looked up by a paper's own labels."""

    def __init__(self, runs: Sequence[StoredRun], allowed: Sequence[str] = ()) -> None:
        pairs = {run.plan.pair.name for run in runs}
        if len(pairs) != 1:
            raise UserError(f"tables need runs of one pair; these are of {', '.join(sorted(pairs)) or 'none'}")
        (self.pair,) = pairs
        self.runs = list(runs)
        self.measured = compare.measured(runs, allowed)
        self.labels: dict[str, str] = {}
        self.sources: dict[tuple[str, str, str], list[str]] = {}
        for run, labels in zip(runs, compare.method_labels(runs), strict=True):
            for spec in run.plan.methods:
                self.labels[spec.identity] = labels[spec.name]
                for line in run.plan.tasks:
                    self.sources.setdefault((run.sampling, line.task, labels[spec.name]), []).append(run.name)
        self._summary = cache(self._summary_against)

    def label(self, spec: MethodSpec) -> str | None:
        return self.labels.get(spec.identity)

    def task(self, paper: Paper, label: str) -> str | None:
        """Our task of a paper's: itself, or the bundled one that stands in for it."""
        name = paper.tasks.get(label)
        measured = self.measured.metric
        if name is None or name in measured:
            return name
        counterpart = task_info(name).counterpart
        return counterpart if counterpart in measured else None

    def documents(self, sampling: str, task: str, label: str) -> pd.DataFrame:
        """Counts, times and the score of every document that a method did, added up over passes; index doc_id.

        Times are in units of the baseline's time per token in the very passes of the method: methods that were measured
        in other runs, at other hours, do not compare in seconds.
        """
        key = (self.pair, sampling, task, label)
        found = self.measured.by_row.get(key)
        base = self.measured.by_row.get((*key[:3], self.measured.baseline or ""))
        if found is None:
            return pd.DataFrame(columns=[*self.measured.counts, "score", "one"], dtype=float)
        counts = found.groupby("doc_id").sum()
        if base is None:  # no speed can be told
            counts[["decode", "whole"]] = math.nan
        else:
            same = base[base.index.droplevel("doc_id").isin(found.index.droplevel("doc_id"))]
            counts["decode"] /= same.decode.sum() / same.decoded.sum()
            counts["whole"] /= same.whole.sum() / same.whole_tokens.sum()
        scores = self.measured.scores
        mine = scores[(scores[compare.ROW] == list(key)).all(axis=1) & scores.doc_id.notna()]
        return counts.assign(score=mine.groupby(mine.doc_id.astype(int)).value.mean(), one=1.0)

    def cell(self, paper: Paper, figure: Figure) -> Cell:
        """Our figure in the unit and with the digits of the printed one."""
        metric = paper.metrics.get(figure.metric)
        if metric is None:
            return Cell(MISSING, reason=f"{figure.metric}: no column of ours has this definition")
        spec = paper.method_spec(figure)
        if spec is None:
            known = paper.runs(figure.method)
            reason = (
                f"{figure.method} with {figure.setting}: no setting of ours"
                if known
                else (f"{figure.method}: not a method of this version")
            )
            return Cell(MISSING, reason=reason)
        if self.measured.baseline is None and metric in WITH_INTERVAL:
            return Cell(MISSING, reason="the runs have no baseline, so no speedup")
        table = self._against(paper, figure.table)
        sampling = sampling_of(figure)
        task = compare.AVERAGE if figure.is_average else self.task(paper, figure.task)
        if task is None:
            return Cell(MISSING, reason=f"{figure.task}: not a task of these runs")
        label = self.label(spec)
        found = table[(table.sampling == sampling) & (table.task == task) & (table.method == label)]
        if figure.is_average and None in self._tasks(paper, figure.table):
            return Cell(MISSING, reason=f"{figure.task}: the paper averages over tasks that were not run")
        if found.empty or pd.isna(found.iloc[0].get(metric, math.nan)):
            return Cell(MISSING, reason=f"{figure.method}: not in these runs" if found.empty else "")
        return Cell(_text(found.iloc[0], metric, figure), self._runs(sampling, task, str(label)))

    def _runs(self, sampling: str, task: str, label: str) -> tuple[str, ...]:
        wanted = [names for (s, t, m), names in self.sources.items() if s == sampling and m == label]
        if task != compare.AVERAGE:
            wanted = [self.sources.get((sampling, task, label), [])]
        return tuple(dict.fromkeys(name for names in wanted for name in names))

    def _tasks(self, paper: Paper, table: int) -> tuple[str | None, ...]:
        """Our tasks of a table, over which it averages; None for those that were not run."""
        labels = dict.fromkeys(f.task for f in paper.figures(table) if not f.is_average)
        return tuple(self.task(paper, label) for label in labels)

    def _against(self, paper: Paper, table: int) -> pd.DataFrame:
        """The summary of a table's tasks with its speedups: against the method that the table names."""
        name = paper.tables[table].baseline or paper.baseline
        label = next((self.labels[i] for i in self.labels if json.loads(i)[0] == name), None)
        for figure in paper.figures(table):  # the very settings that the table gives its baseline
            ref, spec = paper.methods.get(figure.method), paper.method_spec(figure)
            if ref and spec and ref.method == name and self.label(spec):
                label = self.label(spec)
                break
        return self._summary(label, tuple(task for task in self._tasks(paper, table) if task))

    def _summary_against(self, baseline: str | None, tasks: tuple[str, ...]) -> pd.DataFrame:
        return compare.summary(replace(self.measured.only(tasks), baseline=baseline))


def sampling_of(figure: Figure) -> str:
    """The sampling of a figure as runs name it; a paper that does not tell its temperature is met by greedy runs."""
    temperature = float(figure.temperature or 0)
    return "greedy" if temperature == 0 else f"T={temperature:g}"


def side_by_side(paper: Paper, table: int, ours: Ours) -> tuple[pd.DataFrame, list[str]]:
    """Rows of texts, one for each task, method, setting and metric, and notes to stand below them."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    notes: dict[str, None] = {}
    figures = paper.figures(table)
    named_pairs = [pair for pair in dict.fromkeys(f.pair for f in figures) if pair]
    for figure in figures:
        key = (figure.task, figure.temperature, figure.method, figure.setting, figure.metric, figure.unit)
        row = rows.setdefault(key, {})
        row[figure.pair or "the paper"] = figure.value
        cell = ours.cell(paper, figure)
        row[f"ours: {ours.pair}"], row["run"] = cell.text, ", ".join(cell.runs) or "-"
        if cell.reason:
            notes[cell.reason] = None
    pairs = [*named_pairs, *(["the paper"] if any(not f.pair for f in figures) else [])]
    identity = ["task", "T", "method", "setting", "metric", "unit"]
    frame = pd.DataFrame([dict(zip(identity, key, strict=True)) | row for key, row in rows.items()])
    frame = frame[[*identity, *pairs, f"ours: {ours.pair}", "run"]].fillna("-")
    silent = [name for name in ("T", "setting", "task") if name in frame and not (frame[name] != "").any()]
    told = [f"{f.task} is met by {ours.task(paper, f.task)}" for f in figures if ours.task(paper, f.task)]
    if any(not f.temperature for f in figures):
        notes["where the paper does not tell its temperature, ours is greedy"] = None
    return frame.drop(columns=silent), [*dict.fromkeys(told), *notes]


def written(paper: Paper, table: int, ours: Ours) -> tuple[str, str]:
    """A table as a Markdown and as a LaTeX file."""
    frame, notes = side_by_side(paper, table, ours)
    info = paper.tables[table]
    notes = [*notes, *(f"lost in the paper's text: {what}" for what in info.lost), *ours.measured.mismatches]
    if any(paper.metrics.get(label) in WITH_INTERVAL for label in frame.get("metric", [])):
        notes.append(f"speedups are against {info.baseline or paper.baseline}, ours with their 95 % interval")
    arxiv = f" (arXiv {paper.arxiv})" if paper.arxiv else ""
    title = f"{paper.paper}, Table {table}: {info.title}"
    body = tables.markdown(frame)
    markdown = f"# {title}\n\n{paper.title}{arxiv}\n\n{body}\n\n" + "".join(f"- {note}\n" for note in notes)
    latex = f"% {title}. {paper.title}{arxiv}\n{tables.latex(frame)}\n" + "".join(f"% {note}\n" for note in notes)
    return markdown, latex


def _text(row: pd.Series, metric: str, figure: Figure) -> str:
    scale = SCALES.get(figure.unit, 1.0)
    digits = len(figure.value.partition(".")[2])

    def number(value: float) -> str:
        return f"{value * scale:.{digits}f}"

    if metric in WITH_INTERVAL:
        low, high = row[f"{metric}_low"], row[f"{metric}_high"]
        if row.method == row.baseline or math.isnan(low):
            return number(row[metric])
        return f"{number(row[metric])} [{number(low)}, {number(high)}]"
    return number(row[metric]) + (f" ±{number(row.accuracy_stderr)}" if metric == "accuracy" else "")
