"""How methods, points and axes look in the plots of the HTML page, as plotly's own JSON."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.base.console import plain
from specbench.report.drawing import BASES, colours_of, free

Json = dict[str, Any]
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star", "cross", "pentagon", "hourglass")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
PATTERNS = ("", "/", "\\", "x", ".", "-", "|", "+")
BASE_SYMBOLS = ("x", "x-thin-open", "asterisk-open")
GREY = "#808080"


@dataclass(frozen=True)
class Look:
    """How a method is drawn, in every plot."""

    colour: str
    symbol: str
    dash: str
    pattern: str


def looks(methods: Mapping[str, str], baselines: Sequence[str]) -> dict[str, Look]:
    """A colour, a marker, a line and a pattern for each label, of `methods` by label; those of baselines are grey.

    The colour goes by the method's name, as in the plots of `specbench plot`.
    """
    looks: dict[str, Look] = {}
    for i, label in enumerate(label for label in methods if label in baselines):
        looks[label] = Look(BASES[i % len(BASES)], BASE_SYMBOLS[i % len(BASE_SYMBOLS)], DASHES[i % len(DASHES)], "")
    colours = colours_of(methods[label] for label in methods if label not in baselines)
    for i, label in enumerate(label for label in methods if label not in baselines):
        colour = colours[methods[label]]
        symbol = free(SYMBOLS, i, [look.symbol for look in looks.values() if look.colour == colour])
        looks[label] = Look(colour, symbol, DASHES[i % len(DASHES)], PATTERNS[i % len(PATTERNS)])
    return {label: looks[label] for label in methods}


def see_through(colour: str, opacity: float) -> str:
    """A colour #RRGGBB with an opacity, as plotly writes it."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def marker(label: str, look: Look, xs: Sequence[float], ys: Sequence[float], hover: Sequence[str]) -> Json:
    """Points of a method."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name_of(label),
        "x": clean(xs),
        "y": clean(ys),
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 10},
        "cliponaxis": False,
        "hovertext": [f"{name_of(label)}<br>{text}" for text in hover],
        "hoverinfo": "text",
    }


def error_between(values: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> Json:
    """Error bars from low to high; none where they are not known."""
    above = [high - value for value, high in zip(values, highs, strict=True)]
    below = [value - low for value, low in zip(values, lows, strict=True)]
    bars = {"array": clean(above), "arrayminus": clean(below), "symmetric": False}
    return {"type": "data", "thickness": 1.5, "width": 4, **bars}


def clean(values: Any) -> list[float | None]:
    """Numbers for JSON, with five digits; null for what is not known."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def name_of(label: str) -> str:
    """A label with its tags escaped, which plotly would read."""
    return html.escape(plain(label))


def layout(x: str, y: str, at_one: bool = False) -> Json:
    """Axes and margins; `at_one` draws the line of no speedup."""
    made: Json = {
        "height": 380,
        "margin": {"l": 60, "r": 14, "t": 12, "b": 50},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {"title": {"text": x}, "zeroline": False, "automargin": True},
        "yaxis": {"title": {"text": y}, "zeroline": False, "automargin": True, "ticklabelstandoff": 6},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "hovermode": "closest",
        "showlegend": True,
    }
    if at_one:
        line = {"color": GREY, "width": 1, "dash": "dash"}
        made["shapes"] = [{"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper", "line": line}]
    return made
