"""Drafts of one target next to each other: acceptance as it was and as it was to be expected, and what it gained."""

from collections.abc import Iterator
from typing import Any

from specbench.report.finding import Finding, Sheet, bounds, number
from specbench_extras.drafts.study import Drafts


def view(figures: Drafts) -> Finding:
    rows = figures.table.to_dict("records")
    accepted = [[row["pair"], str(row["documents"]), *_cells(row, ".3f", "alpha", "predicted")] for row in rows]
    gained = [[row["pair"], *_cells(row, ".2f", "tau", "mbsu", "speedup")] for row in rows]
    return Finding(
        "drafts",
        f"DRAFTS of {figures.target}, decoded by {figures.method} ({figures.sampling})",
        [Sheet(["pair", "docs", "α", "1 - TVD"], accepted), Sheet(["pair", "τ", "MBSU", "speedup"], gained)],
        [*sentences(figures)],
        [*notes(figures)],
        vars(figures),
    )


def _cells(row: dict[str, Any], form: str, *names: str) -> list[str]:
    return [number(row[name], form) + bounds(row[f"{name}_low"], row[f"{name}_high"], form) for name in names]


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
