"""Complementarity: what target, draft and either of them solve, and how much of it each method recovers."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from specbench.analysis.complementarity import Complementarity
from specbench.base.stats import holm
from specbench.report.columns import p_value
from specbench.report.finding import Finding, Sheet, bounds
from specbench.report.words import LEVEL

SOLVERS = ("target", "draft", "union")


def view(figures: Complementarity) -> Finding:
    lines = sentences(figures)
    return Finding(
        "complementarity",
        f"COMPLEMENTARITY of target and draft ({figures.pair}, {figures.sampling})",
        [sheet for graded in (False, True) for sheet in _sheets(figures, graded)],
        lines,
        [*notes(figures)],
        vars(figures) | {"sentences": dict(zip(figures.tasks.task, lines, strict=True))},
    )


def _sheets(figures: Complementarity, graded: bool) -> Iterator[Sheet]:
    """The solvers, then the methods, of the tasks that are graded, or of those that are right or wrong."""
    tasks = figures.tasks[figures.tasks.graded == graded]
    if tasks.empty:
        return
    most = "best of both" if graded else "union"
    yield Sheet(
        ["task", "total", "target", "draft", most, f"{most} less target"],
        [
            [row["task"], str(row["total"]), *(_count(row, name) for name in SOLVERS), _gap(row)]
            for row in tasks.to_dict("records")
        ],
        "graded scores, not right or wrong: means over texts" if graded else "",
    )
    if figures.methods.empty:
        return
    methods = figures.methods[figures.methods.graded == graded]
    totals = dict(zip(tasks.task, tasks.total, strict=True))
    rows = []
    for row, p in zip(methods.to_dict("records"), holm(methods.p.tolist()), strict=True):
        correct = _count(row | {"total": totals[row["task"]]}, "correct")
        points = f"{100 * row['difference']:+.1f}"
        rows.append([row["task"], row["method"], correct, points, p_value(p), recovery(row)])
    headings = ["task", "method", "mean" if graded else "correct", "points", "p", "recovery"]
    yield Sheet(headings, rows, align="llrrrr")


def _count(row: dict[str, Any], name: str) -> str:
    return f"{100 * row[name] / row['total']:.1f}" if row["graded"] else f"{row[name]:.0f}"


def _gap(row: dict[str, Any]) -> str:
    """A share of texts in percent with its interval, after the count."""
    value = f"{100 * row['gap'] / row['total']:.1f}" + bounds(100 * row["gap_low"], 100 * row["gap_high"], ".1f")
    return value if row["graded"] else f"{row['gap']:.0f}: {value} %"


def recovery(row: dict[str, Any]) -> str:
    """In percent with its interval; - where it is not defined."""
    if row["recovery"] != row["recovery"]:
        return "-"
    interval = bounds(100 * row["recovery_low"], 100 * row["recovery_high"], ".0f")
    return f"{100 * row['recovery']:.0f} %{interval}"


def sentences(figures: Complementarity) -> list[str]:
    """What the tables say, a line each task."""
    lines = []
    for row in figures.tasks.to_dict("records"):
        task = row["task"]
        if row["gap"] <= 0:
            missing = "the best of both is nowhere better" if row["graded"] else "the union solves no more"
            lines.append(f"{task}: nothing to recover: {missing} than the target, so recovery is -.")
            continue
        if row["graded"]:
            gap = f"the best of both is {100 * row['gap'] / row['total']:.1f} points above the target"
        else:
            unsolved = row["total"] - row["target"]
            gap = f"the draft alone solves {row['gap']:.0f} of the {unsolved:.0f} texts that the target does not"
        methods = figures.methods[figures.methods.task == task] if len(figures.methods) else pd.DataFrame()
        recovered = [f"{method['method']} {_recovered(method)}" for method in methods.to_dict("records")]
        lines.append("; ".join([f"{task}: {gap}", *recovered]) + ".")
    return lines


def _recovered(row: dict[str, Any]) -> str:
    value, low = row["recovery"], row["recovery_low"]
    if value <= 0:
        lost = "falls below the target" if value < 0 else "recovers nothing of it"
        return lost + (" (more than by chance)" if row["recovery_high"] < 0 else "")
    doubt = "" if low > 0 else ", which may be chance"
    return f"recovers {100 * value:.0f} % of it{doubt}"


def notes(figures: Complementarity) -> Iterator[str]:
    yield f"target: {figures.target}; draft: {figures.draft}; union: solved by at least one of the two"
    yield "recovery: (method − target) / (union − target), in right answers; - where the union is the target"
    yield "[ ]: 95 %, Wilson's of shares, paired bootstrap over documents of recovery; points: method less target"
    yield f"p: McNemar's test of right-or-wrong scores, Holm-corrected over its table; below {LEVEL}: significant"
    if figures.graded:
        yield (
            "Table 2 of the paper is for right-or-wrong tasks; for graded ones (ROUGE) the better of the two scores of "
            "each document stands for the union, and a permutation test for McNemar's"
        )
    if figures.methods.empty:
        yield "no method of this run can differ from the target; --method NAME compares a lossless one with it"
    if figures.repeats > 1:
        yield f"{figures.repeats} repeats: totals count texts, a text for each repeat of a document"
    if figures.left_out:
        yield f"{figures.left_out} texts are left out, which the draft or a method did not answer"
