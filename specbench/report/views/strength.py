"""Strength: what each method keeps and gains as the draft of one target gets stronger."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from specbench.analysis.compare import AVERAGE
from specbench.analysis.strength import NEAR, Strength, kept_from
from specbench.report.finding import Finding, Sheet, bounds, number


def view(figures: Strength) -> Finding:
    return Finding(
        "strength",
        "STRENGTH of drafts of one target, and what methods make of it",
        [_drafts(figures), *_methods(figures)],
        [*sentences(figures)],
        [*notes(figures)],
        vars(figures),
    )


def _drafts(figures: Strength) -> Sheet:
    rows = []
    for row in _together(figures.drafts).to_dict("records"):
        weakest = figures.drafts[(figures.drafts.run == row["run"]) & (figures.drafts.task != AVERAGE)]
        lowest = weakest.loc[weakest.strength.idxmin()]
        least = f"{100 * lowest.strength:.0f} ({lowest.task})"
        rows.append([row["pair"], str(row["documents"]), _percent(row, "strength"), least, number(row["cost"])])
        rows[-1].append(_alone(row))
    headings = ["pair", "documents", "strength", "weakest task", "cost", "alone"]
    return Sheet(headings, rows, align="lrrlrr")


def _alone(row: dict[str, Any]) -> str:
    return f"{row['solved']:.0f} of {row['missed']:.0f}" if row["missed"] else "-"


def _methods(figures: Strength) -> Iterator[Sheet]:
    table = _together(figures.methods)
    for method, rows in table.groupby("method", sort=False):
        cells = [
            [
                row["pair"],
                f"{100 * row['strength']:.0f}",
                _percent(row, "kept"),
                f"{100 * row['alpha']:.0f}" if row["alpha"] == row["alpha"] else "-",
                number(row["tau"]),
                number(row["speedup"]) + bounds(row["speedup_low"], row["speedup_high"]),
                f"{row['harmful'] * row['rescued']:.0f}/{row['rescued']:.0f}" if row["rescued"] else "-",
            ]
            for row in rows.to_dict("records")
        ]
        yield Sheet(["pair", "strength", "kept", "α", "τ", "speedup", "harmful"], cells, str(method))


def _together(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the average over tasks, or of the only task."""
    return table[table.task == AVERAGE] if (table.task == AVERAGE).any() else table


def _percent(row: dict[str, Any], name: str) -> str:
    return number(100 * row[name], ".0f") + bounds(100 * row[f"{name}_low"], 100 * row[f"{name}_high"], ".0f")


def sentences(figures: Strength) -> Iterator[str]:
    """From which strength on each method keeps accuracy, and with which draft it is fastest."""
    table = _together(figures.methods)
    for method, rows in table.groupby("method", sort=False):
        of_method = figures.methods[figures.methods.method == method]
        if not of_method.delta.fillna(0).any():
            continue
        first, reason = kept_from(figures, str(method))
        if first is None:
            yield f"{method}: keeps {figures.target}'s accuracy with none of these drafts ({reason})."
            continue
        at = 100 * rows.strength[rows.pair == first].iloc[0]
        lost = f"; with weaker ones it does not ({reason})" if reason else ""
        yield f"{method}: keeps {figures.target}'s accuracy from {first} (strength {at:.0f} %) on{lost}."


def notes(figures: Strength) -> Iterator[str]:
    yield (
        "strength: how much of what the target solves the draft solves too, each alone, in %, the mean over tasks; "
        "cost: its seconds a token over the target's; alone: what it solves of what the target misses"
    )
    yield (
        "kept: the method's score over the target's, in %, the mean over tasks; harmful: documents that the method "
        "gets wrong, of those that the target solves and a rescue touched; [ ]: 95 %"
    )
    yield (
        f"a method keeps accuracy if it is significantly lower on no task (p < 0.05, Holm's over tasks) and at most "
        f"{100 * NEAR:g} point lower on their mean, with this draft and all stronger ones"
    )
    yield from figures.mismatches
