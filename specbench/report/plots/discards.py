"""The plot of verification rate against discard rate: curves by a setting, and lines of equal speed."""

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.analysis.frontier import Family, families
from specbench.analysis.pooled import ROW
from specbench.report.drawing import COLOURS, colour_of, free, rate_range
from specbench.report.plots.data import PlotData, drafted, panels
from specbench.report.plots.style import BLACK, GREY, POINTS, WIDTH, Style, few_ticks, grid, head, label_axes

SIDES = ((1, 1), (1, 0), (0, 1), (-1, -1), (0, -1), (-1, 0), (1, -1), (-1, 1))  # places for a name around its point
PARTS = np.linspace(0, 1, 12)  # places along a line between two points, which names do not cover
EQUAL = "equal tokens/s"


def discard_verification(data: PlotData) -> Figure:
    """Verification rate against discard rate, with lines of equal speed by the measured forward times.

    Variants by one setting are joined in its order, and its values are written at the points where there is room. Time
    per token = V · t_target + (1 − V + d) · t_draft, with the mean seconds of a panel's forwards. SpecDec++, Figure 3.
    """
    counts = data.measured.counts.groupby(ROW, sort=False)[["D", "A", "C", "F", "G", "target", "draft"]].sum()
    counts = drafted(data, "discard-verification", counts.reset_index())
    all_panels = list(panels(data, counts.assign(x=(counts.D - counts.A) / counts.C, y=counts.F / counts.C)))
    columns = min(2, len(all_panels))
    height = 2.1 if columns == 1 else 1.5
    fig, axes = grid([height] * len(all_panels), columns, sharex=True, sharey=True)
    curves = _curves(data, counts.method)
    texts = {label: str(v) for family, _ in curves if family.setting for label, v in family.values.items()}
    for ax, (title, rows) in zip(axes, all_panels, strict=True):
        rows = rows.set_index("method")
        for family, style in curves:
            points = rows.reindex([label for label in family.values if label in rows.index])
            if len(points):
                look = style.drawn() | ({} if family.setting else {"ls": ""})
                name = f"{family.name} ({family.setting})" if family.setting else data.named(family.name)
                ax.plot(points.x, points.y, label=name, clip_on=False, **look)
        ax.margins(0.2)
        head(ax, title, columns)
        few_ticks(ax)
    axes[0].set_xlim(rate_range(*axes[0].get_xlim()))
    axes[0].set_ylim(rate_range(*axes[0].get_ylim()))
    for ax, (_, rows) in zip(axes, all_panels, strict=True):
        total = rows.sum(numeric_only=True)
        _iso_lines(ax, total.target / total.F, total.draft / total.G if total.G else 0.0)
        size = 72 * (WIDTH / columns - 0.5), 72 * (height - 0.4)  # of a panel, about, in points
        _name_points(ax, [texts.get(label, "") for label in rows.method], rows[["x", "y"]].to_numpy(), size)
    label_axes(axes, columns, "discard rate", "verification rate")
    return fig


def _curves(data: PlotData, drafting: Iterable[str]) -> list[tuple[Family, Style]]:
    """The families of the methods that draft, each with a style whose colour no other family has."""
    specs = {labels[s.name]: s for run, labels in zip(data.runs, data.labels, strict=True) for s in run.plan.methods}
    labels_drafting = set(drafting)
    groups = families({label: spec for label, spec in specs.items() if label in labels_drafting})
    taken = {data.styles[family.name].color for family in groups if not family.setting}
    curves = []
    for family in groups:
        style = next(data.styles[label] for label in family.values)
        if family.setting:  # the colour that the method has without its variants, or else one that is free
            own = colour_of(family.name.partition(",")[0])
            style = dataclasses.replace(style, color=free(COLOURS, COLOURS.index(own), taken))
        taken.add(style.color)
        curves.append((family, style))
    return curves


def _name_points(ax: Axes, names: Sequence[str], points: np.ndarray, size: tuple[float, float]) -> None:
    """Write names at points [names, 2], each where it covers nothing; `size` is the panel's, in print points."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    scale = np.array(size) / (right - left, top - bottom)
    points = (points - (left, bottom)) * scale
    numbers = [(np.array(text.get_position()) - (left, bottom)) * scale for text in ax.texts]
    lines = (_along(ax) - (left, bottom)) * scale
    covered = [(at - reach, at + reach) for reach, places in ((3, points), (9, numbers), (1, lines)) for at in places]
    for name, at in zip(names, points, strict=True):
        box = np.array([0.6 * POINTS * len(name), POINTS])
        for side in SIDES if name else ():
            corner = at + np.array(side) * ((3 if all(side) else 4.5) + box / 2) - box / 2
            ends = corner, corner + box
            inside = (ends[0] >= 0).all() and (ends[1] <= size).all()
            if inside and not any((ends[0] < high).all() and (ends[1] > low).all() for low, high in covered):
                middle = (corner + box / 2) / scale + (left, bottom)
                ax.text(middle[0], middle[1], name, ha="center", va="center", color=BLACK, zorder=3)
                covered.append(ends)
                break


def _along(ax: Axes) -> np.ndarray:
    """Places [n, 2] along the lines of methods, their points among them."""
    lines = [np.asarray(line.get_xydata()) for line in ax.lines if line.get_label() != EQUAL]
    steps = [start + part * (end - start) for xy in lines for start, end in pairwise(xy) for part in PARTS]
    return np.stack([*np.concatenate(lines), *steps])


def _iso_lines(ax: Axes, t_target: float, t_draft: float) -> None:
    """Lines of equal tokens per second, at round numbers, within the limits that the points have set."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    d, v = np.meshgrid([left, right], [bottom, top])
    corners = v * t_target + (1 - v + d) * t_draft
    if not (corners > 0).all() or t_target <= t_draft:
        return
    points = _along(ax)
    span = np.array([right - left, top - bottom])
    speeds = MaxNLocator(6).tick_values(1 / corners.max(), 1 / corners.min())
    x = np.linspace(left, right, 101)
    for speed in speeds[(speeds > 1 / corners.max()) & (speeds < 1 / corners.min())]:
        y = (1 / speed - (1 + x) * t_draft) / (t_target - t_draft)
        seen = np.flatnonzero((y > bottom) & (y < top))
        if len(seen) < len(x) / 4:  # too short for its number
            continue
        ax.plot(x[[0, -1]], y[[0, -1]], color=GREY, ls=":", lw=0.8, label=EQUAL, zorder=1)
        distances = [np.abs((points - (x[i], y[i])) / span).sum(1).min() for i in seen[10:-10]]
        at = seen[10 + int(np.argmax(distances))]  # far from the points
        slope = np.degrees(np.arctan2(y[-1] - y[0], x[-1] - x[0]))
        ax.text(
            *(x[at], y[at], f"{speed:g}"),
            **{"ha": "center", "va": "center", "color": GREY, "rotation": slope, "transform_rotates_text": True},
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            zorder=1.5,
        )
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)
