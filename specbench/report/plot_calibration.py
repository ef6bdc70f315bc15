"""Plot of how reliable predictions are: what was foretold of draft tokens against how many were accepted."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.acceptance_analysis import NEEDED, POOLED, by_entropy, places, predicting, tested
from specbench.alike import pair_labels
from specbench.config import UserError
from specbench.reliability import BINS, calibration
from specbench.report.plot_data import PlotData, panels
from specbench.report.plot_style import GREY, grid, head, label_axes

STRIP = 0.2  # height of the strip of counts, below the panel proper
BOTTOM = -STRIP - 0.04
TICKS = (0.0, 0.5, 1.0)
SINGLE = 2  # methods whose errors are told one by one in a panel's title


def reliability(data: PlotData) -> Figure:
    """Share of the tested draft tokens that were accepted (95 % interval) against their prediction, in bins.

    A panel for each task, and one for all together; the strip shows how many tokens a bin has, the title the expected
    calibration error. SpecDec++ (arXiv 2405.19715), Equation 4.1.
    """
    bins, errors = _calibrated(data)
    every = list(panels(data, bins[bins.task != POOLED]))
    for title, rows in panels(data, bins[bins.task == POOLED].drop(columns="task")):
        every.append((f"{title}, {POOLED}" if title else POOLED, rows.assign(task=POOLED)))
    columns = min(2, len(every))
    fig, axes = grid([2.4 if columns == 1 else 1.75] * len(every), columns, sharex=True, sharey=True)
    for ax, (title, rows) in zip(axes, every, strict=True):
        ax.plot([0, 1], [0, 1], color=GREY, ls=":", lw=0.8, label="as foretold", zorder=1)
        ax.axhline(BOTTOM, color=GREY, lw=0.4, zorder=1)
        ax.bar(0, 0, 0, color=GREY, alpha=0.6, label="tokens in a bin")  # only for the legend
        methods = list(dict.fromkeys(rows.method))
        for i, method in enumerate(methods):
            mine, style = rows[rows.method == method], data.styles[method]
            around = [mine.accepted - mine.accepted_low, mine.accepted_high - mine.accepted]
            ax.errorbar(
                mine.prediction, mine.accepted, yerr=around, label=data.named(method), **style.drawn() | {"ms": 3}
            )
            _strip(ax, mine, i, len(methods), style.color)
        pair, sampling, task = rows.iloc[0][["pair", "sampling", "task"]]
        head(ax, title, columns)
        told = _told([errors[pair, sampling, task, method] for method in methods])
        ax.set_title("\n".join(line for line in (ax.get_title(), told) if line))
        ax.set_xticks(TICKS)
        ax.set_yticks(TICKS)
        ax.set_xlim(-0.02, 1.02)
        ax.set_ylim(BOTTOM - 0.02, 1.04)
    label_axes(axes, columns, "predicted chance", "accepted")
    return fig


def _told(errors: Sequence[float]) -> str:
    if len(errors) <= SINGLE:
        return "ECE " + " / ".join(f"{error:.3f}" for error in errors)
    return f"ECE {min(errors):.3f} to {max(errors):.3f}"


def _strip(ax: Axes, bins: pd.DataFrame, number: int, methods: int, color: str) -> None:
    """The counts of one method as bars below the panel proper, the fullest bin as high as the strip."""
    width = 0.9 / BINS / methods
    left = (bins.low + bins.high) / 2 - 0.45 / BINS + number * width
    height = STRIP * bins["count"] / bins["count"].max()
    ax.bar(left, height, width, bottom=BOTTOM, align="edge", color=color, alpha=0.6, lw=0)


def _calibrated(data: PlotData) -> tuple[pd.DataFrame, dict[tuple[str, str, str, str], float]]:
    """The bins by pair, sampling, task (or POOLED) and method, and their calibration errors.

    Runs of the same pair, sampling and method count together.
    """
    found: dict[tuple[str, str, str], list[pd.DataFrame]] = {}
    for run, labels, pair in zip(data.runs, data.labels, pair_labels(data.runs), strict=True):
        for spec in predicting(run):
            if not by_entropy(run, spec):
                key = pair, run.sampling, labels[spec.name]
                found.setdefault(key, []).append(tested(run, spec.name).tokens)
    if not found:
        names = ", ".join(run.name for run in data.runs)
        raise UserError(f"reliability needs predictions of draft tokens, and {names} has none; {NEEDED}")
    bins, errors = [], {}
    for (pair, sampling, method), parts in found.items():
        for task, rows in places(pd.concat(parts, ignore_index=True), list(data.measured.metric)):
            one = calibration(rows)
            bins.append(one.bins.assign(pair=pair, sampling=sampling, task=task, method=method))
            errors[pair, sampling, task, method] = one.ece.value
    return pd.concat(bins, ignore_index=True), errors
