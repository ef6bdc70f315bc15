"""Plots of learning: a training's own log, and acceptance from text to text of a run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from specbench.analysis.metrics import TIMED, per_document
from specbench.base import parquet
from specbench.base.untrusted import brief
from specbench.config import UserError
from specbench.report.plots.data import DRAFTING, PlotData
from specbench.report.plots.listed import KINDS
from specbench.report.plots.style import GREY, few_ticks, grid, head, label_axes, legend, styles
from specbench.results.stored import StoredRun

NEEDED = ("step", "loss", "held_out")
REMEDY = "`specbench train --method draft` writes one, NAME.log.parquet"
WINDOW = 16  # texts whose acceptance is one point of a line
CAPTION = "held-out acceptance: Σ min(p, q) = 1 - TVD at temperature 1, the mean over the places of held-out answers"


def training(logs: Sequence[Path]) -> Figure:
    """The loss of each step, its mean over neighbours, and the acceptance on held-out texts; a line for each log."""
    tables = {name_of(path): read_log(path) for path in logs}
    if len(tables) < len(logs):
        raise UserError("two logs have one name; rename one, as lines are called by it")
    drawn = styles(list(tables), [])
    fig, (loss, held) = grid([1.7, 1.7], 1, sharex=True)
    for name, table in tables.items():
        style = drawn[name].drawn()
        steps = table.dropna(subset=["loss"])
        loss.plot(steps.step, steps.loss, color=style["color"], lw=0.4, alpha=0.4)
        smooth = steps.loss.rolling(max(1, len(steps) // 20), min_periods=1).mean()
        loss.plot(steps.step, smooth, color=style["color"], ls=style["ls"])
        looks = table.dropna(subset=["held_out"])
        held.plot(looks.step, looks.held_out, label=name, **style)
    loss.set_ylabel("loss")
    held.set_ylabel("held-out acceptance")
    held.set_xlabel("steps")
    for ax in (loss, held):
        few_ticks(ax, whole=True)
    legend(fig, [], CAPTION, KINDS["training"].title)
    return fig


def name_of(log: Path) -> str:
    return log.name.removesuffix(".parquet").removesuffix(".log")


def read_log(path: Path) -> pd.DataFrame:
    """A training's log. Raises UserError if the file is none."""
    try:
        table = parquet.read(path, needed=NEEDED, remedy=REMEDY).select(list(NEEDED)).to_pandas().astype(float)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} is no log of a training ({brief(error)}); {REMEDY}") from None
    if table.held_out.notna().sum() == 0:
        raise UserError(f"{path} has no look at held-out documents; {REMEDY}")
    return table


def drift(data: PlotData) -> Figure:
    """α over the texts of a run in their order, of the last WINDOW texts; a panel for each run, a line for each method.

    A grey line stands where another task begins.
    """
    panels = [(run, curves(run), labels) for run, labels in zip(data.runs, data.labels, strict=True)]
    panels = [panel for panel in panels if len(panel[1])]
    if not panels:
        raise UserError(f"drift needs a method that drafts; {DRAFTING}")
    fig, axes = grid([1.9] * len(panels), 1)
    for ax, (run, table, labels) in zip(axes, panels, strict=True):
        for name, rows in table.groupby("method", sort=False):
            label = labels[str(name)]
            style = data.styles[label].drawn() | {"marker": ""}
            ax.plot(rows.text, rows.alpha, label=data.named(label), **style)
        for text in table[table.begins & (table.text > 1)].text.unique():
            ax.axvline(text - 0.5, color=GREY, ls=":", lw=0.8, zorder=1)
        few_ticks(ax, whole=True)
        head(ax, run.name if len(panels) > 1 else "", 1)
    label_axes(axes, 1, f"texts, in their order (points: the last {WINDOW})", "α")
    return fig


def curves(run: StoredRun) -> pd.DataFrame:
    """The columns method, text (from 1 on), alpha of the last WINDOW texts, and begins: a task's first text."""
    counts = per_document(run.samples(list(TIMED)), run.rounds()).reset_index()
    counts = counts[counts.A + counts.J > 0]
    order = {line.task: place for place, line in enumerate(run.plan.tasks)}
    counts = counts.sort_values(
        ["repeat", "task", "doc_id"], key=lambda column: column.map(order) if column.name == "task" else column
    )
    parts = []
    for method, rows in counts.groupby("method", sort=False):
        tested = (rows.A + rows.J).rolling(WINDOW, min_periods=1).sum()
        begins = (rows.task != rows.task.shift()) | (rows.repeat != rows.repeat.shift())
        alpha = rows.A.rolling(WINDOW, min_periods=1).sum() / tested
        columns = {"method": method, "text": np.arange(1, len(rows) + 1), "alpha": alpha, "begins": begins}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
