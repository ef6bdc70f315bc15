"""Drafts by the loss and the texts that taught them: acceptance by task, the best of each, and what equals it.

Below the drafts come the mean of each loss over all texts, and that of each kind of texts over all losses.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from specbench.report.finding import Finding, Sheet
from specbench_extras.draft_losses.compare import ALL, FIRST, LEVEL, Losses

FEWEST = 10  # documents of a verdict: of fewer, no permutation test tells one draft of many from the others


def view(figures: Losses) -> Finding:
    sheets = [sheet(part, temperature) for temperature, part in figures.table.groupby("temperature", sort=False)]
    seeds = figures.documents.seed.nunique()
    return Finding(
        "losses",
        f"ACCEPTANCE OF DRAFTS of {figures.pair} by the texts and the loss that trained them\n"
        f"{seeds} seed{'s' if seeds > 1 else ''}, {whose(figures)}",
        sheets,
        [*sentences(figures.table)],
        [*notes(figures)],
        vars(figures),
        figures.table,
    )


def whose(figures: Losses) -> str:
    return f"test documents of {figures.suite}" if figures.suite else "documents that were held out from training"


def sheet(part: pd.DataFrame, temperature: Any) -> Sheet:
    """A row for each draft or mean and a column for each task; * marks the best, = what is not told from it."""
    tasks = list(dict.fromkeys(part.task))
    cells = {(row.data, row.loss, row.task): cell(row) for row in part.itertuples()}
    drafts = list(dict.fromkeys((row.data, row.loss) for row in part.itertuples()))
    rows = [[*draft, *(cells.get((*draft, task), "-") for task in tasks)] for draft in drafts]
    return Sheet(["texts", "loss", *headings(tasks)], rows, f"temperature {temperature:g}", "ll" + "r" * len(tasks))


def cell(row: Any) -> str:
    mark = "*" if best(row) else "=" if equal(row) else " "
    return f"{row.alpha:.3f}{mark if row.documents >= FEWEST else ' '}"


def best(row: Any) -> bool:
    return bool(row.short_p != row.short_p)


def equal(row: Any) -> bool:
    """Not told from the best."""
    return bool(row.short_p >= LEVEL)


def headings(tasks: list[str]) -> list[str]:
    """The tasks without the word that all their names begin with."""
    named = [task for task in tasks if task != ALL]
    words = {task.split("_")[0] for task in named}
    shared = f"{words.pop()}_" if len(words) == 1 and len(named) > 1 else ""
    return [task.removeprefix(shared) for task in tasks]


def sentences(table: pd.DataFrame) -> Iterator[str]:
    """The best of each task and temperature, what it gained, and how many others it is better than."""
    for (temperature, task), part in table.groupby(["temperature", "task"], sort=False):
        where = f"T = {temperature:g}, {task}"
        rows = [row for row in part.itertuples() if ALL not in (row.data, row.loss)]
        top = next(row for row in rows if best(row))
        if top.documents < FEWEST:
            yield f"{where}: too few documents to tell ({top.documents})."
            continue
        better = better_than(row for row in rows if (row.data, row.loss) != FIRST)
        if (top.data, top.loss) == FIRST:
            yield f"{where}: the draft as it was is best, {top.alpha:.3f}; {better}."
        else:
            yield f"{where}: {top.loss} on {top.data} is best, {gained(top)} by training; {better}."
        if task == ALL:
            yield from (f"{where}, {sentence}" for sentence in of_means(part))


def of_means(part: pd.DataFrame) -> Iterator[str]:
    """The best loss on the mean over all texts, and the best texts on the mean over all losses, if there are any."""
    for fixed, free, words in (("data", "loss", "mean over texts"), ("loss", "data", "mean over losses")):
        rows = list(part[part[fixed] == ALL].itertuples())
        for top in filter(best, rows):
            yield f"{words}: {getattr(top, free)} is best, {gained(top)}; {better_than(rows)}."


def gained(row: Any) -> str:
    return f"{row.alpha:.3f}, {row.gain:+.3f} [{row.gain_low:+.3f}, {row.gain_high:+.3f}]"


def better_than(rows: Iterable[Any]) -> str:
    """How many rows the best is better than; it is one of them, or none of them is."""
    others = [row for row in rows if not best(row)]
    return f"better than {sum(not equal(row) for row in others)} of {len(others)} others"


def notes(figures: Losses) -> Iterator[str]:
    yield (
        "acceptance: the mean over documents of Σ min(p, q) along the target's answers; at temperature 0, the share of "
        "places where both models say the same token"
    )
    yield (
        f"*: the best of its column, chosen by these documents; =: no clear difference from it (permutation test, same "
        f"documents, p ≥ {LEVEL} by Holm within a column). These tests resample documents, not seeds"
    )
    if ((figures.table.data == ALL) | (figures.table.loss == ALL)).any():
        yield (
            f"{ALL}: the mean of a loss over all texts, or of texts over all losses, of a grid without gaps; * and = "
            "compare losses with losses and texts with texts"
        )
    yield f"no verdict of fewer than {FEWEST} documents, each counted once, by its mean over seeds"
    if not figures.suite:
        yield (
            "these documents also chose the weights that each training kept, so gains are a little too high; "
            "--suite NAME measures on test documents"
        )
    yield from figures.mismatches
