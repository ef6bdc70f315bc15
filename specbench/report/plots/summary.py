"""Plots of the summary's rows: speed against accuracy, and both against a setting that was swept."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from specbench.base.console import plain
from specbench.config import UserError
from specbench.report.drawing import COLOURS, colour_of, free, front, mixed_models, score_range, speed_range
from specbench.report.plots.data import PlotData, panels
from specbench.report.plots.style import BLACK, GREY, few_ticks, grid, head, label_axes

SPEEDUP, ACCURACY = "decode speedup (×)", "score (%)"
SHADE = "#e9e9e9"
BASELINES = (":", "--", "-.")  # of flat lines
DECADES = 2  # values that span more are drawn on a log scale


def speed_accuracy(data: PlotData) -> Figure:
    """Accuracy against decode speedup, with their 95 % intervals, a panel for each task and their average.

    With the Pareto front, where all speedups are over one baseline and of the same models. Bounds that only an oracle
    reaches are not on it.
    """
    all_panels = list(panels(data, _timed_rows(data, "speed-accuracy")))
    columns = min(2, len(all_panels))
    fig, axes = grid([1.9 if columns == 1 else 1.45] * len(all_panels), columns, sharex=True)
    for ax, (title, rows) in zip(axes, all_panels, strict=True):
        for row in rows.itertuples():
            style = data.styles[row.method]
            ax.errorbar(
                [row.speedup_decode],
                [100 * row.accuracy],
                xerr=_errors(pd.DataFrame([row]), "speedup_decode"),
                yerr=_errors(pd.DataFrame([row]), "accuracy", 100),
                label=data.named(row.method),
                **(style.drawn() | {"ls": "", "ecolor": style.color}),
            )
        head(ax, title, columns)
        few_ticks(ax)
        _percent_limits(ax, rows)
    axes[0].set_xlim(speed_range(*axes[0].get_xlim()))  # shared, so that it holds what all panels have
    several_baselines = any(rows.baseline.nunique() > 1 for _, rows in all_panels)
    for ax, (_, rows) in zip(axes, all_panels, strict=True):
        reached = rows[~rows.method.isin(data.bounds)]
        if len(reached) and not several_baselines and not mixed_models(data.measured.mismatches):
            _front(ax, reached.speedup_decode, 100 * reached.accuracy)
    label_axes(axes, columns, f"{SPEEDUP}, each over its own baseline" if several_baselines else SPEEDUP, ACCURACY)
    return fig


def _front(ax: Axes, x: pd.Series, y: pd.Series) -> None:
    """The Pareto front as a staircase between the edges of the panel, whose limits stay."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    xs, ys = front(x, y, left, bottom)
    ax.plot(xs, ys, ls="--", color=GREY, lw=0.8, drawstyle="steps-pre", label="Pareto front", zorder=1)
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)


def _percent_limits(ax: Axes, rows: pd.DataFrame) -> None:
    """Keep an axis of scores within 0 to 100 %, whatever error bars do, and so wide that noise looks small."""
    if (rows.accuracy <= 1).all():
        ax.set_ylim(score_range(*ax.get_ylim()))


def sweep(data: PlotData) -> Figure:
    """Decode speedup and accuracy, with their 95 % intervals, against the setting by which methods differ.

    Where lines of one implementation have the same baseline, the best of them is shaded.
    """
    x_name, points = swept(data)
    rows = _timed_rows(data, "sweep")
    all_panels = list(panels(data, rows[rows.method.isin(points.label) | (rows.method == rows.baseline)]))
    fig, axes = grid([1.5] * (2 * len(all_panels)), 2, sharex=True)
    colours: dict[str, str] = {}
    for line, family in points[["line", "family"]].drop_duplicates().itertuples(index=False):
        colours[line] = free(COLOURS, COLOURS.index(colour_of(family)), colours.values())
    for i, (title, part) in enumerate(all_panels):
        fast, right = axes[2 * i : 2 * i + 2]
        fast.set_title(title, loc="left")
        fast.set_ylabel(SPEEDUP)
        right.set_ylabel(ACCURACY)
        _baseline(data, part[~part.method.isin(points.label[points.base])], fast, right)
        drawn = points.merge(part, left_on="label", right_on="method").sort_values("x", kind="stable")
        for (line, base), of_line in drawn.groupby(["line", "base"], sort=False):
            style = data.styles[points.label[points.line == line].iloc[0]]
            look = {**style.drawn(), "label": line, "color": colours[line]}
            look |= {"ls": ""} if isinstance(of_line.value.iloc[0], str) else {}  # nothing lies between names
            if base:
                look |= {"color": BLACK, "ls": ":"}
                fast.plot(of_line.x, [1.0] * len(of_line), **look)
            else:
                fast.errorbar(of_line.x, of_line.speedup_decode, yerr=_errors(of_line, "speedup_decode"), **look)
            right.errorbar(of_line.x, 100 * of_line.accuracy, yerr=_errors(of_line, "accuracy", 100), **look)
        _envelopes(fast, drawn[~drawn.base])
        for ax in (fast, right):
            few_ticks(ax, whole=bool((points.x % 1 == 0).all()))
            _scale(ax, points)
            ax.tick_params(labelbottom=i == len(all_panels) - 1)
            if i == len(all_panels) - 1:
                ax.set_xlabel(x_name)
        fast.set_ylim(speed_range(*fast.get_ylim()))
        _percent_limits(right, part)
    return fig


def _envelopes(ax: Axes, rows: pd.DataFrame) -> None:
    """Shade the largest speedup of each implementation over its lines with the same baseline at each value."""
    named = any(isinstance(value, str) for value in rows.value)
    for family, of_family in rows.groupby("family", sort=False):
        values = of_family.groupby("x")
        alike = (values.line.nunique() > 1) & (values.baseline.nunique() == 1)
        if not named and alike.sum() > 1 and alike.all():
            best = values.speedup_decode.max()
            ax.fill_between(best.index, 1, best, color=SHADE, lw=0, zorder=0, label=f"best of {family}")


def swept(data: PlotData) -> tuple[str, pd.DataFrame]:
    """The setting that was swept, and for each method of the sweep its `label`, `line`, `family`, `base`, `x`, `value`.

    Methods belong together by their implementation, the `family`. If they differ in more than one setting, the one with
    most values is swept, and each combination of the others makes a line. `x` is the value, or its number where values
    are not numbers. Baselines (`base`) that differ in the swept setting make lines of their own; they do not decide
    what is swept. Raises UserError if nothing was swept, or different settings of different implementations.
    """
    families: dict[str, dict[str, dict[str, Any]]] = {}
    for run, labels in zip(data.runs, data.labels, strict=True):
        for spec in run.plan.methods:
            families.setdefault(spec.method, {})[labels[spec.name]] = spec.values
    baselines = set(data.measured.baselines.values())
    bases = {name for name, variants in families.items() if variants.keys() <= baselines}
    settings = {name: _varying(list(variants.values())) for name, variants in families.items()}
    names = {name: varying[0] for name, varying in settings.items() if varying and name not in bases}
    if not names:
        raise UserError(
            "sweep needs methods that differ in a setting; `specbench run --method csd --suite pocket "
            "--set csd.gamma=2` and again with csd.gamma=4 make two runs to be plotted together"
        )
    if len(set(names.values())) > 1:
        pairs = " and ".join(f"{setting} by {name}" for name, setting in names.items())
        raise UserError(f"different settings are swept ({pairs}); plot runs of one of them at a time")
    x_name = next(iter(names.values()))
    rows = []
    for name in (name for name, varying in settings.items() if name in names or (name in bases and x_name in varying)):
        others = [key for key in settings[name] if key != x_name]
        for label, values in families[name].items():
            line = ", ".join([name, *(f"{key}={values.get(key)}" for key in others)])
            base = name in bases
            line += " (baseline)" * base
            rows.append({"label": label, "line": line, "family": name, "base": base, "value": values.get(x_name)})
    points = pd.DataFrame(rows).astype({"value": object})
    if not all(map(_is_number, points.value)):
        points["value"] = [str(value) for value in points.value]
        return x_name, points.assign(x=pd.factorize(points.value)[0])
    return x_name, points.assign(x=points.value.astype(float)).sort_values("x", kind="stable")


def _varying(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The settings by which methods of one implementation differ, the one with most values first."""
    keys = dict.fromkeys(key for of_method in settings for key in of_method)
    counts = {key: len({json.dumps(of_method.get(key), default=str) for of_method in settings}) for key in keys}
    numeric = {key: all(_is_number(of_method.get(key)) for of_method in settings) for key in keys}
    return sorted((key for key in keys if counts[key] > 1), key=lambda key: (-counts[key], not numeric[key]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _scale(ax: Axes, points: pd.DataFrame) -> None:
    """Ticks along a swept setting: its values by name, or a linear, log or (where 0 is a value) symmetric log scale."""
    if isinstance(points.value.iloc[0], str):
        named = points.drop_duplicates("x")
        ax.set_xticks(named.x, list(map(plain, named.value)))
        ax.set_xlim(named.x.min() - 0.5, named.x.max() + 0.5)
        return
    positive = points.x[points.x > 0]
    if len(positive) and math.log10(positive.max() / positive.min()) > DECADES:
        linear = {} if (points.x > 0).all() else {"linthresh": positive.min()}
        ax.set_xscale("symlog" if linear else "log", **linear)
        ax.xaxis.set_major_formatter("{x:g}")  # superscripts would be smaller than the rest
        ax.xaxis.set_minor_formatter(NullFormatter())


def _baseline(data: PlotData, rows: pd.DataFrame, fast: Axes, right: Axes) -> None:
    for i, row in enumerate(rows[rows.method == rows.baseline].itertuples()):
        for ax, y in ((fast, 1.0), (right, 100 * row.accuracy)):
            ax.axhline(y, color=BLACK, ls=BASELINES[i % len(BASELINES)], label=data.named(row.method))


def _timed_rows(data: PlotData, kind: str) -> pd.DataFrame:
    """The rows that have a speedup and an accuracy. Raises UserError if only the baseline has."""
    rows = data.summary[data.summary.speedup_decode.notna() & data.summary.accuracy.notna()]
    if (rows.method == rows.baseline).all():
        raise UserError(
            f"{kind} needs methods next to the baseline that they were timed with; "
            "`specbench run --method csd --suite pocket` makes such a run"
        )
    return rows


def _errors(rows: pd.DataFrame, name: str, scale: float = 1.0) -> np.ndarray:
    """The intervals of a column as distances [2, rows] from its values, times `scale`."""
    value = rows[name]
    distances = np.stack([value - rows[f"{name}_low"], rows[f"{name}_high"] - value])
    return scale * np.maximum(distances, 0.0)  # rounding; a missing bound stays NaN
