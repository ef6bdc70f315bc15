"""How plots look: legible in a 3.4 inch column, to colour-blind readers and in grey print; files are reproducible."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from specbench.base import files
from specbench.base.console import plain
from specbench.report.drawing import BASES, colours_of, free

WIDTH = 3.4  # inches: one column of a two-column paper
CHARACTERS = 52  # how many fit into WIDTH
POINTS = 8
CAPTION = "#444444"
BLACK, GREY = "#000000", "#777777"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BASE_MARKERS = ("*", "p", "h")  # for baselines
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++")
# Metadata that keep the time of writing out of a file.
DATES: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
LOOK = {
    "font.family": "sans-serif",
    "font.size": POINTS,
    "axes.titlesize": POINTS,
    "axes.labelsize": POINTS,
    "xtick.labelsize": POINTS,
    "ytick.labelsize": POINTS,
    "legend.fontsize": POINTS,
    "figure.titlesize": POINTS,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.06,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 4.5,
    "lines.markeredgewidth": 0.5,
    "errorbar.capsize": 1.5,
    "patch.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.2,
    "savefig.dpi": 250,
    "svg.fonttype": "none",
    "svg.hashsalt": "specbench",
    "pdf.fonttype": 42,
    "text.parse_math": False,  # names from files may hold $
    "text.usetex": False,
}


@dataclass(frozen=True)
class Style:
    """How a method is drawn in every plot."""

    color: str
    marker: str
    line: Any  # as matplotlib's linestyle
    hatch: str

    def drawn(self) -> dict[str, Any]:
        """Keywords of a line with markers."""
        size = {"markersize": 7} if self.marker == "*" else {}
        return {"color": self.color, "marker": self.marker, "ls": self.line, "markeredgecolor": BLACK, **size}


def styles(methods: Sequence[str], baselines: Sequence[str]) -> dict[str, Style]:
    """A style for each method: first the baselines, which are grey, then the others in their order.

    The colour goes by the method's name, and no two have one while there are others; the rest goes by its place.
    """
    styles = {
        name: Style(BASES[i % len(BASES)], BASE_MARKERS[i % len(BASE_MARKERS)], LINES[i % len(LINES)], "")
        for i, name in enumerate(baselines)
    }
    others = [name for name in dict.fromkeys(methods) if name not in styles]
    colours = colours_of(others)
    for i, name in enumerate(others):
        color = colours[name]
        marker = free(MARKERS, i, [style.marker for style in styles.values() if style.color == color])
        styles[name] = Style(color, marker, LINES[i % len(LINES)], HATCHES[i % len(HATCHES)])
    return styles


def look() -> Any:
    """A context in which figures are made and saved."""
    return rc_context({**LOOK})  # type: ignore[dict-item]


def grid(heights: Sequence[float], columns: int, **share: bool | str) -> tuple[Figure, list[Axes]]:
    """A figure of the column's width with a panel for each height (inches), row by row; `share`: sharex, sharey."""
    panels = len(heights)
    rows = heights[::columns]
    fig = Figure(figsize=(WIDTH, sum(rows) + 0.5))
    axes = fig.subplots(len(rows), columns, squeeze=False, height_ratios=rows, **share)  # type: ignore[call-overload]
    axes = axes.ravel().tolist()
    for unused in axes[panels:]:
        unused.remove()
    return fig, axes[:panels]


def with_gaps(rows: pd.DataFrame, every: Iterable[float]) -> pd.DataFrame:
    """Rows by their index, with an empty one for each of `every` between them, so that a line breaks there."""
    return rows.reindex([place for place in every if rows.index.min() <= place <= rows.index.max()])


def head(ax: Axes, title: str, columns: int) -> None:
    """A panel's title, wrapped to its width in a grid of so many columns."""
    ax.set_title(textwrap.fill(title, CHARACTERS // columns - 4))


def label_axes(axes: Sequence[Axes], columns: int, x: str, y: str) -> None:
    """Axis labels on the outer panels of a grid whose panels all show the same."""
    for i, ax in enumerate(axes):
        if i + columns >= len(axes):
            ax.set_xlabel(x)
            ax.tick_params(labelbottom=True)
        if i % columns == 0:
            ax.set_ylabel(y)


def few_ticks(ax: Axes, x: int = 4, y: int = 4, whole: bool = False) -> None:
    """At most so many steps on each axis; `whole`: whole numbers along x."""
    ax.xaxis.set_major_locator(MaxNLocator(x, integer=whole))
    ax.yaxis.set_major_locator(MaxNLocator(y, steps=[1, 2, 2.5, 5, 10]))


def legend(fig: Figure, notes: Sequence[str], caption: str, title: str = "") -> None:
    """One legend below all panels, and above them what a reader must know; the figure grows by their lines.

    The title is the first of these lines, the caption, which says what was measured where, the second; `notes` follow.
    """
    handles: dict[str, Any] = {}
    for ax in fig.axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    names = [textwrap.fill(name, CHARACTERS - 8) for name in handles]
    above = [line for note in (title, caption, *notes) if note for line in textwrap.wrap(note, CHARACTERS)]
    lines = float(len(above))
    if names:
        widest = max(len(line) for name in names for line in name.splitlines())
        columns = max(1, min(len(names), CHARACTERS // (widest + 7)))
        lines += sum(name.count("\n") + 1 for name in names) / columns
        fig.legend(handles.values(), names, loc="outside lower center", ncols=columns)
    fig.suptitle("\n".join(above), ha="left", x=0.02, color=CAPTION)
    width, height = fig.get_size_inches()
    fig.set_size_inches(width, height + lines * 1.35 * POINTS / 72)


def save(fig: Figure, path: Path) -> None:
    """Write a figure as svg (text stays text), pdf or png, by the suffix of `path`; no dates."""
    format = path.suffix[1:].lower()
    for text in fig.findobj(Text):
        text.set_text(plain(text.get_text(), "\n"))
    with look(), files.whole(path) as new:
        fig.savefig(new, format=format, metadata=DATES[format])
