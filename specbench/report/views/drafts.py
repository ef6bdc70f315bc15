"""Drafts of one target beside each other: acceptance as it was and as it was to be expected, and what it gained."""

from collections.abc import Iterator
from typing import Any

from specbench.report.finding import Finding, Sheet, bounds, number
from specbench.studies.drafts import Drafts


def view(figures: Drafts) -> Finding:
    rows = [
        [
            row["pair"],
            str(row["documents"]),
            *(_cell(row, name, ".3f") for name in ("alpha", "predicted")),
            *(_cell(row, name, ".2f") for name in ("tau", "mbsu", "speedup")),
        ]
        for row in figures.table.to_dict("records")
    ]
    headings = ["pair", "docs", "α", "1 - TVD", "τ", "MBSU", "speedup"]
    return Finding(
        "drafts",
        f"DRAFTS of {figures.target}, decoded by {figures.method} ({figures.sampling})",
        [Sheet(headings, rows)],
        [*sentences(figures)],
        [*notes(figures)],
        vars(figures),
    )


def _cell(row: dict[str, Any], name: str, form: str) -> str:
    return number(row[name], form) + bounds(row[f"{name}_low"], row[f"{name}_high"], form)


def sentences(figures: Drafts) -> Iterator[str]:
    """By how much τ differs from the first draft's."""
    first, *others = figures.table.to_dict("records")
    for row in others:
        if row["gain"] != row["gain"]:
            continue
        share = f"{row['gain']:.3f} times{bounds(row['gain_low'], row['gain_high'], '.3f')} that of {first['pair']}"
        sure = row["gain_low"] > 1 or row["gain_high"] < 1
        yield f"{row['pair']}: τ is {share}{'' if sure else '; this may be chance'}."


def notes(figures: Drafts) -> Iterator[str]:
    yield (
        "1 - TVD: the acceptance that both models' distributions predict, Σ min(p, q), on average over the places that "
        "were tested; it should agree with α"
    )
    costs = ", ".join(f"{row.pair} {number(row.cost, '.3f')}" for row in figures.table.itertuples())
    yield (
        "MBSU: τ/(cγ + 1), the speedup if only reading weights took time; c: the draft's parameters over the target's "
        f"({costs}), γ: draft forwards a round"
    )
    yield "means over tasks; [ ]: 95 %; τ is compared in pairs of documents"
    yield from figures.mismatches
