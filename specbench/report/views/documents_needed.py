"""How many documents a comparison needs, by task and method."""

import math
from collections.abc import Iterator

from specbench.analysis.documents_needed import Needed
from specbench.report.finding import Finding, Sheet, number


def view(figures: Needed) -> Finding:
    """The numbers of documents next to those of the run, and what they come from."""
    size, points = f"{100 * (figures.speedup - 1):+g} %", f"{figures.points:g} points"
    headings = ["method", "docs", "noise %", f"for {size} speed", "discordant %", f"for {points}"]
    rows: list[list[str]] = []
    for (pair, sampling, task), of_task in figures.table.groupby(["pair", "sampling", "task"], sort=False):
        several = figures.table[["pair", "sampling"]].drop_duplicates().shape[0] > 1
        rows.append([f"{task} ({pair}, {sampling})" if several else str(task)])
        for row in of_task.to_dict("records"):
            figures_of_row = number(100 * row["noise"], ".1f"), _count(row["for_speed"])
            share = number(100 * row["discordant"], ".1f")
            rows.append([f"  {row['method']}", str(row["documents"]), *figures_of_row, share, _count(row["for_score"])])
    return Finding("plan", sheets=[Sheet(headings, rows)], notes=[*notes(figures)], facts=vars(figures))


def notes(figures: Needed) -> Iterator[str]:
    yield (
        "documents that show a true difference of this size in 80 of 100 runs, at the 5 % level, as a single "
        "comparison; each further one needs more (Holm)"
    )
    yield "noise: of a document's speedup; discordant: documents that only the method or only the baseline solves"
    if figures.table.assumed.any():
        yield "the share of discordant documents was given; no difference can exceed it"
    elif figures.table.discordant.notna().any():
        yield "discordant as in the run; no difference can exceed it; --discordant assumes another share"


def _count(documents: float) -> str:
    if math.isinf(documents):
        return "never"
    return number(documents, ".0f")
