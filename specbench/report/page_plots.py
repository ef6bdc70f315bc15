"""The plots of the HTML page as plotly's own JSON, each with a view by task."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from specbench.analysis.compare import AVERAGE
from specbench.base.console import plain
from specbench.report import page_rounds
from specbench.report.drawing import front, score_range, speed_range
from specbench.report.page_style import (
    GREY,
    Json,
    Look,
    clean,
    error_between,
    layout,
    marker,
    name_of,
)

ALL_TASKS = "all tasks"
NO_DRAFTS = "No method here has rounds with drafts on record, so there is no acceptance to show."


@dataclass(frozen=True)
class PlottedTables:
    """What is plotted; every table has a column `label`, the method's name on the page."""

    summary: pd.DataFrame
    depths: pd.DataFrame  # of metrics.depths, by document
    counts: pd.DataFrame  # of metrics.per_document, with its index as columns, and the name of the `run`
    looks: dict[str, Look]
    bounds: frozenset[str] = frozenset()  # labels of what knows what only an oracle knows
    mixed: bool = False  # runs of other models are compared


def plots(figures: PlottedTables) -> list[Json]:
    """Each plot's name, title, a line on how to read it, one for where it is empty, and its views.

    A view is plotly's data and layout, by task.
    """
    summary, depths, counts = figures.summary, figures.depths, figures.counts
    tasks = [task for task in summary.task.drop_duplicates() if task != AVERAGE]
    averaged = [AVERAGE] if (summary.task == AVERAGE).any() else []
    pooled = [ALL_TASKS] if len(tasks) > 1 else []
    runs = list(counts.run.drop_duplicates())

    def of(table: pd.DataFrame, task: str) -> pd.DataFrame:
        return table if task == ALL_TASKS else table[table.task == task]

    def by_task(names: list[str], table: pd.DataFrame, draw: Callable[[pd.DataFrame, PlottedTables], Json]) -> Json:
        return {plain(name): draw(of(table, name), figures) for name in names}

    def by_looks(names: list[str], table: pd.DataFrame, draw: Callable[..., Json]) -> Json:
        return {plain(name): draw(of(table, name), figures.looks) for name in names}

    return [
        {
            "name": "speed-accuracy",
            "title": "Speed against accuracy",
            "help": "Right and up is better. Bars: 95 % intervals. "
            "The dotted steps lead along the methods that no other beats in both.",
            "lacks": "No method here has both a decode speedup over a baseline and a score.",
            "views": by_task([*averaged, *tasks], summary, _speed_accuracy),
        },
        {
            "name": "speedup",
            "title": "Speedup per task",
            "help": "Decode time per token of the baseline over the method's, with its 95 % interval.",
            "lacks": "No method here has a decode speedup: that needs decode times of it and of a baseline.",
            "views": {ALL_TASKS: _speedups(summary, figures, [*tasks, *averaged])},
        },
        {
            "name": "discard-verification",
            "title": "Discarded drafts against target forwards",
            "help": "Both per committed token: left and down is less work.",
            "lacks": "The records do not tell how many drafts were discarded, or how often the target ran.",
            "views": by_task([*averaged, *tasks], summary, _discard_verification),
        },
        *(
            {
                "name": f"time-{i}",
                "title": "Where decode time goes" + (f", {plain(run)}" if len(runs) > 1 else ""),
                "help": "Milliseconds per committed token, in the forwards of the models and outside of them"
                + ("; only methods of one run compare." if len(runs) > 1 else "."),
                "lacks": "The records lack the seconds of the models' forwards.",
                "views": by_looks([*pooled, *tasks], counts[counts.run == run], page_rounds.time),
            }
            for i, run in enumerate(runs)
        ),
        {
            "name": "depth",
            "title": "Acceptance by depth",
            "help": "Of the drafts tested at a position, the share that was accepted, with its 95 % interval over "
            "documents.",
            "lacks": NO_DRAFTS,
            "views": by_looks([*pooled, *tasks], depths, page_rounds.depth),
        },
        {
            "name": "lengths",
            "title": "Accepted length",
            "help": "Share of the drafting rounds by how many drafts they accepted, without those that ended a text.",
            "lacks": NO_DRAFTS,
            "views": by_looks([*pooled, *tasks], depths, page_rounds.lengths),
        },
    ]


def _speed_accuracy(rows: pd.DataFrame, figures: PlottedTables) -> Json:
    data: list[Json] = []
    known = _known(rows, "speedup_decode", "accuracy")
    lows, highs = [], []
    for row in known:
        x, y = row["speedup_decode"], 100 * row["accuracy"]
        least, most = (100 * row.get(f"accuracy_{end}", math.nan) for end in ("low", "high"))
        hover = f"speedup {_interval(row, 'speedup_decode')}<br>score {y:.1f}"
        hover += f" [{least:.1f}, {most:.1f}]" * (least == least)
        data.append(
            marker(row["label"], figures.looks[row["label"]], [x], [y], [hover])
            | {"error_x": _error_x([row]), "error_y": error_between([y], [least], [most])}
        )
        lows.append((_or(row.get("speedup_decode_low"), x), _or(least, y)))
        highs.append((_or(row.get("speedup_decode_high"), x), _or(most, y)))
    made = layout("decode speedup (×)", "score (%)", at_one=True)
    if known:
        left, right = speed_range(min(x for x, _ in lows), max(x for x, _ in highs))
        left, right = left - 0.04 * (right - left), right + 0.04 * (right - left)
        made["xaxis"]["range"] = clean([left, right])
        percent = all(row["accuracy"] <= 1 for row in known)
        bottom, top = min(y for _, y in lows), max(y for _, y in highs)
        bottom, top = score_range(bottom, top) if percent else (bottom, top)
        made["yaxis"]["range"] = clean([bottom, top])
        data = [*_fronts(pd.DataFrame(known), figures, left, bottom), *data]
    return {"data": data, "layout": made}


def _fronts(rows: pd.DataFrame, figures: PlottedTables, left: float, bottom: float) -> list[Json]:
    """The Pareto front of each pair and sampling: speedups of different models, or over different baselines, beat
    nothing, and bounds are reached by no method."""
    fronts: list[Json] = []
    if figures.mixed or rows.get("baseline", pd.Series("")).nunique() > 1:
        return fronts
    rows = rows[~rows.label.isin(figures.bounds)]
    setups = [name for name in ("pair", "sampling") if name in rows]
    groups = [group for _, group in rows.groupby(setups, sort=False)] if setups else [rows]
    for group in groups:
        if len(group) > 1:
            xs, ys = front(group.speedup_decode, 100 * group.accuracy, left, bottom)
            line = {"dash": "dot", "color": GREY, "width": 1.5, "shape": "vh"}
            fronts.append(
                {"type": "scatter", "mode": "lines", "name": "Pareto front", "x": clean(xs), "y": clean(ys)}
                | {"line": line, "hoverinfo": "skip", "showlegend": not fronts}
            )
    return fronts


def _or(value: float | None, other: float) -> float:
    return value if value is not None and math.isfinite(value) else other


def _speedups(rows: pd.DataFrame, figures: PlottedTables, tasks: list[str]) -> Json:
    rows = rows[rows.method != rows.get("baseline", "")]
    labels = list(rows.label.drop_duplicates())
    data = []
    for i, label in enumerate(labels):
        known = [row for row in _known(rows[rows.label == label], "speedup_decode") if row["task"] in tasks]
        shift = 0.8 * ((i + 0.5) / len(labels) - 0.5)
        xs, ys = [row["speedup_decode"] for row in known], [tasks.index(row["task"]) + shift for row in known]
        hover = [f"{name_of(row['task'])}: {_interval(row, 'speedup_decode')}" for row in known]
        if known:
            data.append(marker(label, figures.looks[label], xs, ys, hover) | {"error_x": _error_x(known)})
    made = layout("decode speedup (×)", "", at_one=True)
    made["height"] = 200 + len(tasks) * max(40, 13 * len(labels))
    made["yaxis"] |= {"tickvals": list(range(len(tasks))), "ticktext": [name_of(task) for task in tasks]}
    made["yaxis"] |= {"range": [len(tasks) - 0.5, -0.5], "showgrid": False}
    return {"data": data, "layout": made}


def _discard_verification(rows: pd.DataFrame, figures: PlottedTables) -> Json:
    data = []
    known = _known(rows, "discard_rate", "verification_rate")
    for row in known:
        x, y = row["discard_rate"], row["verification_rate"]
        hover = f"discarded {x:.3f}<br>target forwards {y:.3f}"
        data.append(marker(row["label"], figures.looks[row["label"]], [x], [y], [hover]))
    made = layout("discarded drafts per token", "target forwards per token")
    for axis, name in (("xaxis", "discard_rate"), ("yaxis", "verification_rate")):
        most = max((row[name] for row in known), default=1) or 1
        made[axis]["range"] = clean([-0.04 * most, 1.08 * most])
    return {"data": data, "layout": made}


def _known(rows: pd.DataFrame, *names: str) -> list[Json]:
    """The rows that have a value in each of these columns."""
    if any(name not in rows for name in names):
        return []
    return rows[rows[list(names)].notna().all(axis=1)].to_dict("records")


def _error_x(rows: list[Json]) -> Json:
    values, lows, highs = ([row.get(f"speedup_decode{end}", math.nan) for row in rows] for end in ("", "_low", "_high"))
    return error_between(values, lows, highs)


def _interval(row: Json, name: str) -> str:
    low, high = row.get(f"{name}_low", math.nan), row.get(f"{name}_high", math.nan)
    return f"{row[name]:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low == low and row["method"] != row["baseline"] else "")
