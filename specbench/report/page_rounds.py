"""The plots of the HTML page of what happens in rounds: where time goes, acceptance by depth, accepted lengths."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from specbench.analysis import depth_intervals
from specbench.report.drawing import OPACITY
from specbench.report.page_style import GREY, Json, Look, clean, error_between, layout, marker, name_of, see_through

ROUNDING = 1e-6  # ms a token
PARTS = (  # of a method's time, what they are called, and their pattern
    ("target", "target forwards", ""),
    ("draft", "draft forwards", "/"),
    ("further models", "forwards of further models", "."),
    ("masks", "masks of the constraint", "x"),
    ("outside forwards", "outside forwards", ""),
)


def time(counts: pd.DataFrame, looks: Mapping[str, Look]) -> Json:
    """Milliseconds per token of each method of one run, in parts; of methods whose parts are all known."""
    sums = counts.groupby("label", sort=False)[["C", "target", "draft", "models", "masks", "decode"]].sum(min_count=1)
    sums = sums.reindex([label for label in looks if label in sums.index])
    per_token = sums[["target", "draft", "models", "masks", "decode"]].div(sums.C.replace(0, np.nan), axis=0) * 1000
    per_token["further models"] = (per_token.models - per_token.target - per_token.draft).where(lambda x: x > ROUNDING)
    per_token["outside forwards"] = (
        per_token.decode - per_token.models.fillna(per_token.target) - per_token.masks.fillna(0)
    )
    per_token["masks"] = per_token.masks.where(lambda x: x > ROUNDING)
    data: list[Json] = []
    for name, title, pattern in PARTS:
        times = per_token[name].dropna()
        hover = [
            f"{name_of(label)}<br>{title}: {value:.3g} ms per token ({value / per_token.decode[label]:.0%})"
            for label, value in times.items()
        ]
        colours = [see_through(looks[label].colour, OPACITY[name]) for label in times.index]
        look = {"color": colours, "line": {"color": GREY, "width": 1}}
        look |= {"pattern": {"shape": pattern, "fgcolor": GREY}} if pattern else {}
        data.append(
            {"type": "bar", "orientation": "h", "name": title, "marker": look, "hovertext": hover}
            | {
                "y": [name_of(label) for label in times.index],
                "x": clean(times),
                "hoverinfo": "text",
                "textposition": "none",
            }
        )
    made = layout("ms per token", "") | {"barmode": "stack", "height": 170 + 34 * max(3, len(sums))}
    made["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    return {"data": [bars for bars in data if bars["x"]], "layout": made}


def depth(depths: pd.DataFrame, looks: Mapping[str, Look]) -> Json:
    """Acceptance of the drafts tested at each position, in percent; the axis is whole, so that noise looks small."""
    data = []
    for label, counts in _in_order(depths, looks):
        table = depth_intervals.acceptance(counts)
        table = table[table.tested > 0]
        hover = [
            f"depth {row.depth}: {row.cond_accept:.1%}{_between(row.low, row.high)} of {row.tested:,} tested"
            f"<br>{row.joint_accept:.1%} of all rounds"
            for row in table.itertuples()
        ]
        if len(table):
            look = looks[label]
            line = {"color": look.colour, "dash": look.dash, "width": 1.5}
            shares = 100 * table.cond_accept
            points = marker(label, look, table.depth.tolist(), shares.tolist(), hover)
            bars = error_between(shares.tolist(), (100 * table.low).tolist(), (100 * table.high).tolist())
            data.append(points | {"mode": "lines+markers", "line": line, "error_y": bars})
    made = layout("position in the draft", "accepted if tested (%)")
    made["xaxis"]["dtick"] = _tick(depths)
    made["yaxis"]["range"] = [0, 104]
    return {"data": data, "layout": made}


def lengths(depths: pd.DataFrame, looks: Mapping[str, Look]) -> Json:
    """Shares of the rounds by how many drafts they accepted."""
    data = []
    whole = depths[(depths["D"] > 0) & ~depths["cut"].astype(bool)]
    for label, counts in _in_order(whole, looks):
        share = counts.groupby("A").R.sum() / counts.R.sum()
        look = looks[label]
        hover = [f"{name_of(label)}<br>{length} accepted: {value:.1%} of the rounds" for length, value in share.items()]
        style = {"color": look.colour, "pattern": {"shape": look.pattern, "fillmode": "overlay"}}
        data.append(
            {"type": "bar", "name": name_of(label), "marker": style, "hovertext": hover, "textposition": "none"}
            | {"x": clean(share.index), "y": clean(100 * share), "hoverinfo": "text"}
        )
    made = layout("drafts accepted in a round", "rounds (%)")
    made["xaxis"] |= {"dtick": _tick(depths), "showgrid": False}
    return {"data": data, "layout": made}


def _between(low: float, high: float) -> str:
    return f" [{low:.1%}, {high:.1%}]" if low == low else ""


def _in_order(table: pd.DataFrame, looks: Mapping[str, Look]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each method that drafts, in the order of the page."""
    for label in looks:
        of_label = table[table.label == label]
        if len(of_label) and of_label["D"].max() > 0:
            yield label, of_label


def _tick(depths: pd.DataFrame) -> int:
    known = depths["D"].dropna()
    return max(1, math.ceil(float(known.max() if len(known) else 1) / 12))
