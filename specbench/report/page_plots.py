"""The plots of the HTML page as plotly's own JSON, each with a view by task."""

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis import metrics
from specbench.analysis.compare import AVERAGE
from specbench.base.console import plain

Json = dict[str, Any]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9")  # Okabe and Ito's, but for the yellow
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star", "cross", "pentagon", "hourglass")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
PATTERNS = ("", "/", "\\", "x", ".", "-", "|", "+")
GREY = "#808080"
GREYS = (GREY, "#404040", "#a8a8a8")  # for baselines
BASE_SYMBOLS = ("x", "x-thin-open", "asterisk-open")
ALL_TASKS = "all tasks"
ROUNDING = 1e-6  # ms a token


@dataclass(frozen=True)
class Look:
    """How a method is drawn, in every plot."""

    colour: str
    symbol: str
    dash: str
    pattern: str


@dataclass(frozen=True)
class Figures:
    """What is plotted; every table has a column `label`, the method's name on the page."""

    summary: pd.DataFrame
    depths: pd.DataFrame  # of metrics.depths
    counts: pd.DataFrame  # of metrics.per_document, with its index as columns
    looks: dict[str, Look]


def looks(labels: Sequence[str], baselines: Sequence[str]) -> dict[str, Look]:
    """A colour, a marker, a line and a pattern for each method; baselines are grey."""
    grey = [label for label in labels if label in baselines]
    by_label = {
        label: Look(GREYS[i % len(GREYS)], BASE_SYMBOLS[i % len(BASE_SYMBOLS)], DASHES[i % len(DASHES)], "")
        for i, label in enumerate(grey)
    }
    for i, label in enumerate(label for label in labels if label not in by_label):
        by_label[label] = Look(
            COLOURS[i % len(COLOURS)], SYMBOLS[i % len(SYMBOLS)], DASHES[i % len(DASHES)], PATTERNS[i % len(PATTERNS)]
        )
    return {label: by_label[label] for label in labels}


def plots(figures: Figures) -> list[Json]:
    """Each plot's name, title, a line on how to read it, and its views: plotly's data and layout by task."""
    summary, depths, counts = figures.summary, figures.depths, figures.counts
    tasks = [task for task in summary.task.drop_duplicates() if task != AVERAGE]
    averaged = [AVERAGE] if (summary.task == AVERAGE).any() else []
    pooled = [ALL_TASKS] if len(tasks) > 1 else []

    def of(table: pd.DataFrame, task: str) -> pd.DataFrame:
        return table if task == ALL_TASKS else table[table.task == task]

    def by_task(names: list[str], table: pd.DataFrame, draw: Callable[[pd.DataFrame, Figures], Json]) -> Json:
        return {plain(name): draw(of(table, name), figures) for name in names}

    return [
        {
            "name": "speed-accuracy",
            "title": "Speed against accuracy",
            "help": "Right and up is better. Bars: 95 % interval of the speedup, standard error of the score. "
            "The dotted line joins the methods that no other beats in both.",
            "views": by_task([*averaged, *tasks], summary, _speed_accuracy),
        },
        {
            "name": "speedup",
            "title": "Speedup per task",
            "help": "Decode time per token of the baseline over the method's, with its 95 % interval.",
            "views": {ALL_TASKS: _speedups(summary, figures, [*tasks, *averaged])},
        },
        {
            "name": "discard-verification",
            "title": "Discarded drafts against target forwards",
            "help": "Both per committed token: left and down is less work.",
            "views": by_task([*averaged, *tasks], summary, _discard_verification),
        },
        {
            "name": "time",
            "title": "Where decode time goes",
            "help": "Milliseconds per committed token, in the forwards of the models and outside of them.",
            "views": by_task([*pooled, *tasks], counts, _time),
        },
        {
            "name": "depth",
            "title": "Acceptance by depth",
            "help": "Of the drafts tested at a position, the share that was accepted.",
            "views": by_task([*pooled, *tasks], depths, _depth),
        },
        {
            "name": "lengths",
            "title": "Accepted length",
            "help": "Share of the drafting rounds by how many drafts they accepted, without those that ended a text.",
            "views": by_task([*pooled, *tasks], depths, _lengths),
        },
    ]


def _speed_accuracy(rows: pd.DataFrame, figures: Figures) -> Json:
    data: list[Json] = []
    points = []
    for row in _known(rows, "speedup_decode", "accuracy"):
        x, y = row["speedup_decode"], 100 * row["accuracy"]
        points.append((x, y))
        error = 100 * row.get("accuracy_stderr", math.nan)
        hover = f"speedup {_interval(row, 'speedup_decode')}<br>score {y:.1f}" + f" ± {error:.1f}" * (error == error)
        data.append(
            _marker(row["label"], figures, [x], [y], [hover])
            | {"error_x": _error_x([row], "speedup_decode"), "error_y": _error({"array": clean([error])})}
        )
    front = [point for point in sorted(points) if not any(_beats(other, point) for other in points)]
    if len(front) > 1:
        line = {"dash": "dot", "color": GREY, "width": 1.5}
        xs, ys = zip(*front, strict=True)
        data.insert(
            0,
            {"type": "scatter", "mode": "lines", "name": "Pareto front", "x": xs, "y": ys, "line": line}
            | {"hoverinfo": "skip"},
        )
    return {"data": data, "layout": _layout("decode speedup (×)", "score (%)", at_one=True)}


def _speedups(rows: pd.DataFrame, figures: Figures, tasks: list[str]) -> Json:
    rows = rows[rows.method != rows.get("baseline", "")]
    labels = list(rows.label.drop_duplicates())
    data = []
    for i, label in enumerate(labels):
        known = [row for row in _known(rows[rows.label == label], "speedup_decode") if row["task"] in tasks]
        shift = 0.8 * ((i + 0.5) / len(labels) - 0.5)
        xs, ys = [row["speedup_decode"] for row in known], [tasks.index(row["task"]) + shift for row in known]
        hover = [f"{_name(row['task'])}: {_interval(row, 'speedup_decode')}" for row in known]
        if known:
            data.append(_marker(label, figures, xs, ys, hover) | {"error_x": _error_x(known, "speedup_decode")})
    layout = _layout("decode speedup (×)", "", at_one=True)
    layout["height"] = 200 + len(tasks) * max(40, 13 * len(labels))
    layout["yaxis"] |= {"tickvals": list(range(len(tasks))), "ticktext": [_name(task) for task in tasks]}
    layout["yaxis"] |= {"range": [len(tasks) - 0.5, -0.5], "showgrid": False}
    return {"data": data, "layout": layout}


def _discard_verification(rows: pd.DataFrame, figures: Figures) -> Json:
    data = []
    for row in _known(rows, "discard_rate", "verification_rate"):
        x, y = row["discard_rate"], row["verification_rate"]
        hover = f"discarded {x:.3f}<br>target forwards {y:.3f}"
        data.append(_marker(row["label"], figures, [x], [y], [hover]))
    layout = _layout("discarded drafts per token", "target forwards per token")
    for axis, name in (("xaxis", "discard_rate"), ("yaxis", "verification_rate")):
        most = max((row[name] for row in _known(rows, "discard_rate", "verification_rate")), default=1) or 1
        layout[axis]["range"] = clean([-0.04 * most, 1.08 * most])
    return {"data": data, "layout": layout}


def _time(counts: pd.DataFrame, figures: Figures) -> Json:
    sums = counts.groupby("label", sort=False)[["C", "target", "draft", "models", "decode"]].sum(min_count=1)
    sums = sums.reindex([label for label in figures.looks if label in sums.index])
    per_token = sums[["target", "draft", "models", "decode"]].div(sums.C.replace(0, np.nan), axis=0) * 1000
    per_token["members"] = (per_token.models - per_token.target - per_token.draft).where(lambda x: x > ROUNDING)
    per_token["rest"] = per_token.decode - per_token.models.fillna(per_token.target)
    data: list[Json] = []
    for name, title, colour, pattern in (
        ("target", "target forwards", "#0072B2", ""),
        ("draft", "draft forwards", "#E69F00", "/"),
        ("members", "forwards of further models", "#009E73", "x"),
        ("rest", "outside forwards", GREY, "."),
    ):
        times = per_token[name].dropna()
        hover = [
            f"{_name(label)}<br>{title}: {value:.3g} ms per token ({value / per_token.decode[label]:.0%})"
            for label, value in times.items()
        ]
        marker = {"color": colour, "pattern": {"shape": pattern, "fillmode": "overlay"}}
        data.append(
            {"type": "bar", "orientation": "h", "name": title, "marker": marker, "hovertext": hover}
            | {
                "y": [_name(label) for label in times.index],
                "x": clean(times),
                "hoverinfo": "text",
                "textposition": "none",
            }
        )
    layout = _layout("ms per token", "") | {"barmode": "stack", "height": 170 + 34 * max(3, len(sums))}
    layout["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    return {"data": [bars for bars in data if bars["x"]], "layout": layout}


def _depth(depths: pd.DataFrame, figures: Figures) -> Json:
    data = []
    for label, counts in _in_order(depths, figures):
        table = metrics.acceptance_by_depth(counts)
        table = table[table.tested > 0]
        hover = [
            f"depth {row.depth}: {row.cond_accept:.1%} of {row.tested:,} tested<br>{row.joint_accept:.1%} of all rounds"
            for row in table.itertuples()
        ]
        if len(table):
            look = figures.looks[label]
            line = {"color": look.colour, "dash": look.dash, "width": 1.5}
            points = _marker(label, figures, table.depth.tolist(), (100 * table.cond_accept).tolist(), hover)
            data.append(points | {"mode": "lines+markers", "line": line})
    layout = _layout("position in the draft", "accepted if tested (%)")
    layout["xaxis"]["dtick"] = _tick(depths)
    return {"data": data, "layout": layout}


def _lengths(depths: pd.DataFrame, figures: Figures) -> Json:
    data = []
    whole = depths[(depths["D"] > 0) & ~depths["cut"].astype(bool)]
    for label, counts in _in_order(whole, figures):
        share = counts.groupby("A").R.sum() / counts.R.sum()
        look = figures.looks[label]
        hover = [f"{_name(label)}<br>{length} accepted: {value:.1%} of the rounds" for length, value in share.items()]
        marker = {"color": look.colour, "pattern": {"shape": look.pattern, "fillmode": "overlay"}}
        data.append(
            {"type": "bar", "name": _name(label), "marker": marker, "hovertext": hover, "textposition": "none"}
            | {"x": share.index.tolist(), "y": clean(100 * share), "hoverinfo": "text"}
        )
    layout = _layout("drafts accepted in a round", "rounds (%)")
    layout["xaxis"] |= {"dtick": _tick(depths), "showgrid": False}
    return {"data": data, "layout": layout}


def _in_order(table: pd.DataFrame, figures: Figures) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each method that drafts, in the order of the page."""
    for label in figures.looks:
        of_label = table[table.label == label]
        if len(of_label) and of_label["D"].max() > 0:
            yield label, of_label


def _tick(depths: pd.DataFrame) -> int:
    known = depths["D"].dropna()
    return max(1, math.ceil(float(known.max() if len(known) else 1) / 12))


def _known(rows: pd.DataFrame, *names: str) -> list[Json]:
    """The rows that have a value in each of these columns."""
    if any(name not in rows for name in names):
        return []
    return rows[rows[list(names)].notna().all(axis=1)].to_dict("records")


def _beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a != b and a[0] >= b[0] and a[1] >= b[1]


def _marker(label: str, figures: Figures, xs: list[float], ys: list[float], hover: list[str]) -> Json:
    look = figures.looks[label]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": _name(label),
        "x": clean(xs),
        "y": clean(ys),
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 10},
        "cliponaxis": False,
        "hovertext": [f"{_name(label)}<br>{text}" for text in hover],
        "hoverinfo": "text",
    }


def _error_x(rows: list[Json], name: str) -> Json:
    array = [row.get(f"{name}_high", math.nan) - row[name] for row in rows]
    below = [row[name] - row.get(f"{name}_low", math.nan) for row in rows]
    return _error({"array": clean(array), "arrayminus": clean(below), "symmetric": False})


def _error(values: Json) -> Json:
    return {"type": "data", "thickness": 1.5, "width": 4, **values}


def _interval(row: Json, name: str) -> str:
    low, high = row.get(f"{name}_low", math.nan), row.get(f"{name}_high", math.nan)
    return f"{row[name]:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low == low and row["method"] != row["baseline"] else "")


def clean(values: Any) -> list[float | None]:
    """Numbers for JSON, with five digits; null for what is not known."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def _name(label: str) -> str:
    """A label with its tags escaped, which plotly would read."""
    return html.escape(plain(label))


def _layout(x: str, y: str, at_one: bool = False) -> Json:
    """Axes and margins; `at_one` draws the line of no speedup."""
    layout: Json = {
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
        layout["shapes"] = [{"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper", "line": line}]
    return layout
