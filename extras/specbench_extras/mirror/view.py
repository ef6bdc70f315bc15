"""How often a draft would have been ready before the target had verified, and what that would have saved."""

from collections.abc import Hashable, Mapping
from typing import Any

from specbench.report.finding import Finding, Sheet, bounds, number
from specbench_extras.mirror.analysis import Mirror


def view(figures: Mirror) -> Finding:
    names = ("hit", "hit_end", "modelled_speedup", "modelled_speedup_end")
    rows = [
        [f"{row['layer']} of {figures.layers}", str(row["branches"]), *(_cell(row, name) for name in names)]
        for row in figures.table.to_dict("records")
    ]
    first = figures.table.to_dict("records")[0]
    counted = f"{first['rounds']} rounds of {first['documents']} documents"
    return Finding(
        "mirror",
        f"DRAFTS THAT WOULD HAVE BEEN READY: {figures.method}, {counted}",
        [Sheet(["exit", "κ", "hit", "at the end", "modelled", "at the end"], rows, align="rrrrrr")],
        [f"measured, without early drafts: {_cell(first, 'speedup')} over {figures.baseline or 'no baseline'}"],
        [
            "hit: share of rounds whose added token is among the κ likeliest by the exit layer, at any place of the "
            "draft (κ branches at each); at the end: and the whole draft was accepted (κ branches after it)",
            "modelled, not measured: a ready draft costs what the target's later layers don't cover; branches are free",
            "[ ]: 95 %, over documents",
        ],
        vars(figures),
    )


def _cell(row: Mapping[Hashable, Any], name: str) -> str:
    """A figure with its interval."""
    return number(row[name]) + bounds(row[f"{name}_low"], row[f"{name}_high"])
