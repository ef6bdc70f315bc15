"""Plot of what changed from run to run: the same methods, measured again and again."""

import pandas as pd
from matplotlib.figure import Figure

from specbench.analysis import compare, pooled
from specbench.analysis.alike import method_labels
from specbench.config import UserError
from specbench.report.drawing import speed_range
from specbench.report.plots.data import PlotData, panels
from specbench.report.plots.style import BLACK, few_ticks, grid, label_axes
from specbench.results.stored import StoredRun

SPEEDUP = "decode speedup (×)"
FEW = 4  # runs whose names stand next to one another
SPREAD = 0.5  # of the distance of two runs: so far apart are the methods of one


def history(data: PlotData) -> Figure:
    """Decode speedup of each method in each run, with its 95 % interval, in the order in which the runs began.

    A panel for each task and one for their average. No line joins runs, since nothing was measured between them.
    Raises UserError for one run alone, and for runs without a speedup.
    """
    if len(data.runs) < 2:
        raise UserError("history draws several runs that repeat each other; give at least two")
    order = sorted(range(len(data.runs)), key=lambda i: data.runs[i].manifest.get("started") or "")
    rows = pd.concat([_of_run(data, i).assign(place=place) for place, i in enumerate(order)])
    rows = rows[rows.speedup_decode.notna() & (rows.method != rows.baseline)]
    if rows.empty:
        raise UserError("history needs decode speedups, and no run here has one; time a method and its baseline")
    methods = [name for name in data.styles if (rows.method == name).any()]
    all_panels = list(panels(data, rows))
    fig, axes = grid([1.5] * len(all_panels), 1, sharex=True)
    for ax, (title, part) in zip(axes, all_panels, strict=True):
        for i, (method, of_method) in enumerate((name, part[part.method == name]) for name in methods):
            shift = SPREAD * ((i + 0.5) / len(methods) - 0.5)
            ends = [of_method.speedup_decode - of_method.speedup_decode_low]
            ends += [of_method.speedup_decode_high - of_method.speedup_decode]
            look = data.styles[method].drawn() | {"ls": "", "label": data.named(method)}
            ax.errorbar(of_method.place + shift, of_method.speedup_decode, yerr=ends, **look)
        ax.axhline(1, color=BLACK, lw=0.8, ls=":")
        ax.set_title(title, loc="left")
        few_ticks(ax)
        ax.set_ylim(speed_range(*ax.get_ylim()))
    axes[0].set_xticks(range(len(order)), [_name(data.runs[i]) for i in order])
    axes[0].set_xlim(-0.5, len(order) - 0.5)
    for ax in axes if len(order) > FEW else ():
        ax.tick_params(axis="x", rotation=90)
    label_axes(axes, 1, "run: began on, at commit", SPEEDUP)
    return fig


def _of_run(data: PlotData, number: int) -> pd.DataFrame:
    """The summary of one run by itself, with the names that its methods have among all runs."""
    run = data.runs[number]
    (own,) = method_labels([run])
    named = {own[name]: label for name, label in data.labels[number].items()}
    rows = compare.summary(pooled.measured([run]))
    return rows.assign(method=rows.method.map(named), baseline=rows.baseline.map(named))


def _name(run: StoredRun) -> str:
    """When a run began, and the first letters of its commit."""
    started, commit = str(run.manifest.get("started") or ""), run.manifest["environment"].get("git")
    return "\n".join([started[:10] or "not known", started[11:16], str(commit or "no commit")[:7]])
