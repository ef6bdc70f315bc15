"""Plot of what servers give to each user and to all."""

import pandas as pd
from matplotlib.figure import Figure

from specbench.analysis.load import Slo
from specbench.analysis.requests import request_figures
from specbench.plan import Plan
from specbench.report.drawing import front
from specbench.report.plots.data import PlotData
from specbench.report.plots.style import GREY, few_ticks, grid, head, label_axes

NAMES = "points: requests at a time, or a second (/s)"
USER, ALL = "tokens/s of a user, median", "tokens/s of all"


def requests(data: PlotData) -> Figure:
    """Tokens a second of each user against those of all, a panel for each task; a line for each server.

    Its points are the runs, in the order of their concurrency or rate, which they are named by; runs by concurrency and
    runs by rate are lines of their own. The Pareto front is over all servers.
    """
    tables = []
    for run, labels in zip(data.runs, data.labels, strict=True):
        table = request_figures(run, Slo())
        load = run.plan.rate or run.plan.concurrency
        facts = {"asked": asked(run.plan), "load": load, "paced": bool(run.plan.rate)}
        tables.append(table.assign(label=table.method.map(labels), **facts))
    rows = pd.concat(tables).sort_values("load", kind="stable").dropna(subset=["user_tokens_per_s", "tokens_per_s"])
    tasks = list(dict.fromkeys(rows.task))
    columns = min(2, len(tasks))
    fig, axes = grid([1.9 if columns == 1 else 1.5] * max(len(tasks), 1), max(columns, 1))
    for ax, task in zip(axes, tasks, strict=False):
        of_task = rows[rows.task == task]
        for (label, _), points in of_task.groupby(["label", "paced"], sort=False):
            named = data.named(str(label))
            if named in ax.get_legend_handles_labels()[1]:
                named = "_"  # matplotlib leaves it out of the legend
            ax.plot(points.tokens_per_s, points.user_tokens_per_s, label=named, **data.styles[str(label)].drawn())
            for point in points.itertuples():
                place = (point.tokens_per_s, point.user_tokens_per_s)
                ax.annotate(point.asked, place, (4, 3), textcoords="offset points", fontsize=6)
        ax.set_xlim(0, 1.15 * of_task.tokens_per_s.max())
        ax.set_ylim(0, 1.15 * of_task.user_tokens_per_s.max())
        xs, ys = front(of_task.tokens_per_s, of_task.user_tokens_per_s, 0.0, 0.0)
        ax.plot(xs, ys, ls="--", color=GREY, lw=0.8, drawstyle="steps-pre", label="Pareto front", zorder=1)
        ax.plot([], [], ls="", label=NAMES)
        head(ax, task, columns)
        few_ticks(ax)
    label_axes(axes, columns, ALL, USER)
    return fig


def asked(plan: Plan) -> str:
    """The name of a run's points: the rate, or how many requests were sent at a time."""
    return f"{plan.rate:g}/s" if plan.rate else str(plan.concurrency)
