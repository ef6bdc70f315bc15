"""Plot of how reliable predictions are: the predicted chance of draft tokens against the share that was accepted."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.analysis.acceptance import NEEDED, POOLED, by_entropy, predicting, tested_tokens
from specbench.analysis.alike import pair_labels
from specbench.analysis.metrics import by_task
from specbench.analysis.reliability import BINS, calibration
from specbench.config import UserError
from specbench.report.plots.data import PlotData, panels
from specbench.report.plots.style import GREY, grid, head, label_axes

STRIP = 0.2  # height of the strip of counts, below the panel proper
BOTTOM = -STRIP - 0.04
TICKS = (0.0, 0.5, 1.0)
SINGLE = 2  # methods whose errors a panel's title lists one by one; of more it has the range


def reliability(data: PlotData) -> Figure:
    """Share of the tested draft tokens that were accepted (95 % interval) against their prediction, in bins.

    A panel for each task, and one for all together; the strip shows how many tokens a bin has, the title the expected
    calibration error. SpecDec++ (arXiv 2405.19715), Equation 4.1.
    """
    bins, errors = _calibrated(data)
    all_panels = list(panels(data, bins[bins.task != POOLED]))
    for title, rows in panels(data, bins[bins.task == POOLED].drop(columns="task")):
        all_panels.append((f"{title}, {POOLED}" if title else POOLED, rows.assign(task=POOLED)))
    columns = min(2, len(all_panels))
    fig, axes = grid([2.4 if columns == 1 else 1.75] * len(all_panels), columns, sharex=True, sharey=True)
    for ax, (title, rows) in zip(axes, all_panels, strict=True):
        ax.plot([0, 1], [0, 1], color=GREY, ls=":", lw=0.8, label="as predicted", zorder=1)
        ax.axhline(BOTTOM, color=GREY, lw=0.4, zorder=1)
        ax.bar(0, 0, 0, color=GREY, alpha=0.6, label="tokens in a bin")  # only for the legend
        methods = list(dict.fromkeys(rows.method))
        for i, method in enumerate(methods):
            points, style = rows[rows.method == method], data.styles[method]
            errors_y = [points.accepted - points.accepted_low, points.accepted_high - points.accepted]
            ax.errorbar(
                points.prediction, points.accepted, yerr=errors_y, label=data.named(method), **style.drawn() | {"ms": 3}
            )
            _strip(ax, points, i, len(methods), style.color)
        pair, sampling, task = rows.iloc[0][["pair", "sampling", "task"]]
        head(ax, title, columns)
        ece = _ece([errors[pair, sampling, task, method] for method in methods])
        ax.set_title("\n".join(line for line in (ax.get_title(), ece) if line))
        ax.set_xticks(TICKS)
        ax.set_yticks(TICKS)
        ax.set_xlim(-0.02, 1.02)
        ax.set_ylim(BOTTOM - 0.02, 1.04)
    label_axes(axes, columns, "predicted chance", "accepted")
    return fig


def _ece(errors: Sequence[float]) -> str:
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
    tokens: dict[tuple[str, str, str], list[pd.DataFrame]] = {}
    for run, labels, pair in zip(data.runs, data.labels, pair_labels(data.runs), strict=True):
        for spec in predicting(run):
            if not by_entropy(run, spec):
                key = pair, run.sampling, labels[spec.name]
                tokens.setdefault(key, []).append(tested_tokens(run, spec.name).tokens)
    if not tokens:
        names = ", ".join(run.name for run in data.runs)
        raise UserError(f"reliability needs predictions of draft tokens, and {names} has none; {NEEDED}")
    bins, errors = [], {}
    for (pair, sampling, method), parts in tokens.items():
        for task, rows in by_task(pd.concat(parts, ignore_index=True), list(data.measured.metric), POOLED):
            calibrated = calibration(rows)
            bins.append(calibrated.bins.assign(pair=pair, sampling=sampling, task=task, method=method))
            errors[pair, sampling, task, method] = calibrated.ece.value
    return pd.concat(bins, ignore_index=True), errors
