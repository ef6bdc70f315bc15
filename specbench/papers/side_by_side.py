"""A paper's table next to our own figures, cell by cell; `not measured` where we have none."""

from collections.abc import Collection

import pandas as pd

from specbench.base.console import plain
from specbench.base.escape import markdown_text
from specbench.papers.on_pair import MISSING, labels_of
from specbench.papers.ours import Ours
from specbench.papers.published import Figure, Paper
from specbench.papers.texts import WITH_INTERVAL, Cell
from specbench.report import tables

SECONDS = ("tokens_per_s", "tokens_per_s_e2e", "tokens_per_s_e2e_mean")  # metrics in a machine's own time
POINTS = "points"  # the unit of a judge's ratings


def side_by_side(paper: Paper, table: int, ours: Ours) -> tuple[pd.DataFrame, list[str]]:
    """A row of texts for each task, method, setting, metric and pair of ours, and notes to stand below them.

    Our figures are in the column `ours: PAIR`, or in `ours` with `our pair` next to it if several pairs of ours
    correspond to the table's.
    """
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    notes: dict[str, None] = {}
    figures = paper.figures(table)
    printed_pairs = [pair for pair in dict.fromkeys(f.pair for f in figures) if pair]
    our_pairs = {paper.pair_of(figure, ours.default) for figure in figures}
    heading = "ours" if len(our_pairs) > 1 or None in our_pairs else f"ours: {next(iter(our_pairs))}"
    for figure in figures:
        key = (figure.task, figure.temperature, figure.method, figure.setting, figure.metric, figure.unit)
        our_pair = paper.pair_of(figure, ours.default) or "-"
        row = rows.setdefault((*key, our_pair), {})
        row[figure.pair or "the paper"] = figure.value
        cell = _cell(paper, figure, ours)
        row[heading], row["run"] = cell.text, ", ".join(cell.runs) or "-"
        if cell.reason:
            notes[cell.reason] = None
    pairs = [*printed_pairs, *(["the paper"] if any(not f.pair for f in figures) else [])]
    identity = ["task", "T", "method", "setting", "metric", "unit", "our pair"]
    frame = pd.DataFrame([dict(zip(identity, key, strict=True)) | row for key, row in rows.items()])
    frame = frame[[*identity[:-1], *pairs, *(["our pair"] if heading == "ours" else []), heading, "run"]].fillna("-")
    empty = [name for name in ("T", "setting", "task") if name in frame and not (frame[name] != "").any()]
    tasks = {label: ours.tasks(paper, table, label) for label in labels_of(paper, table)}
    stand_ins = [_met(label, names, tasks.values()) for label, names in tasks.items() if names]
    if len(set(filter(None, tasks.values()))) < len(stand_ins) and any(f.is_average for f in figures):
        stand_ins.append("a task of ours that meets several of the paper's counts once in our average")
    if samplings := dict.fromkeys(paper.sampling_of(f).name for f in figures if not f.temperature):
        notes[f"where the paper does not tell its temperature, ours is {' or '.join(samplings)}"] = None
    for name, gain in paper.gains.items():
        if any(f.metric == name for f in figures):
            notes[f"{name}: {gain.metric} over that of {gain.over} on the same documents, less 1"] = None
    return frame.drop(columns=empty), [*stand_ins, *notes]


def _cell(paper: Paper, figure: Figure, ours: Ours) -> Cell:
    """Our counterpart of a figure. A judge's points have none on tasks that stand in: no judge scores these."""
    if needs := paper.tables[figure.table].needs:
        return Cell(MISSING, reason=f"this table needs what is not here: {needs}")
    if figure.unit == POINTS and ours.tasks(paper, figure.table, figure.task) not in ((), (paper.tasks[figure.task],)):
        return Cell(MISSING, reason=f"{figure.task}: its score is a judge's, which the tasks that stand in for it lack")
    return ours.cell(paper, figure)


def _met(label: str, tasks: tuple[str, ...], of_table: Collection[tuple[str, ...]]) -> str:
    """Which tasks of ours meet a data set of the paper."""
    if len(tasks) == 1:
        return f"{label} is met by {tasks[0]}"
    twice = any((task,) in of_table for task in tasks)
    once = "; claims (checks.md) leave out of it the tasks with a row of their own" if twice else ""
    return f"{label} is met by the average of {', '.join(tasks)}{once}"


def written(paper: Paper, table: int, ours: Ours) -> tuple[str, str]:
    """A table as a Markdown and as a LaTeX file."""
    frame, notes = side_by_side(paper, table, ours)
    info = paper.tables[table]
    mismatches = dict.fromkeys(line for pair in ours.of_table(paper, table) for line in pair.measured.mismatches)
    notes = [*notes, *(f"{MISSING}: {why}" for why in info.missing if (frame == MISSING).any(axis=None))]
    notes = [*notes, *(f"lost in the paper's text: {what}" for what in info.lost), *mismatches]
    pooled = frame.run.str.contains(", ", regex=False)
    if (pooled & frame.metric.map(paper.metrics).isin(SECONDS)).any():
        notes.append(
            "where a row names several runs, its tokens/s are of all of them together and its speedup is over the"
            " baseline in each, so the one divided by the baseline's tokens/s is not the other"
        )
    if any(paper.metrics.get(label) in WITH_INTERVAL for label in frame.get("metric", [])):
        notes.append(f"speedups are against {info.baseline or paper.baseline}, ours with their 95 % interval")
    arxiv = f" (arXiv {paper.arxiv})" if paper.arxiv else ""
    title = f"{paper.paper}, Table {table}: {info.title}"
    body = tables.markdown(frame)
    head, below = markdown_text(title), markdown_text(f"{paper.title}{arxiv}")
    markdown = f"# {head}\n\n{below}\n\n{body}\n\n" + "".join(f"- {markdown_text(note)}\n" for note in notes)
    above = plain(f"{title}. {paper.title}{arxiv}")
    latex = f"% {above}\n{tables.latex(frame)}\n" + "".join(f"% {plain(note)}\n" for note in notes)
    return markdown, latex
