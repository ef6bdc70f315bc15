"""Throughput of fixed batches: every method at every size, and where it is faster than the target alone."""

from collections.abc import Iterator
from typing import Any

from specbench.report.finding import Finding, Sheet, bounds, number
from specbench.studies.throughput import BASE, Throughput


def view(figures: Throughput) -> Finding:
    suite = f"{figures.pair}, {figures.suite}, {figures.documents} documents, {figures.sampling}"
    return Finding(
        "throughput",
        f"FIXED BATCHES ({suite})",
        [_sheet(figures)],
        sentences(figures),
        [*notes(figures)],
        vars(figures),
    )


def _sheet(figures: Throughput) -> Sheet:
    rows = []
    for row in figures.table.to_dict("records"):
        same = f"{row['equal']}/{row['compared']}" if row["compared"] else "-"
        speed = f"{row['tokens_per_s']:.0f}", _speedup(row), f"{row['tau']:.2f}"
        rows.append([row["method"], str(row["batch"]), *speed, same])
    return Sheet(["method", "batch", "tok/s", "speedup [95 %]", "τ", "texts as alone"], rows)


def _speedup(row: dict[str, Any]) -> str:
    if row["speedup"] != row["speedup"] and row["method"] == BASE:
        return "1 (base)"
    return number(row["speedup"]) + bounds(row["speedup_low"], row["speedup_high"])


def sentences(figures: Throughput) -> list[str]:
    """For each method the batches at which it is faster than the target alone, slower, or neither for sure."""
    lines = []
    for name, rows in figures.table[figures.table.method != BASE].groupby("method", sort=False):
        faster = rows[rows.speedup_low > 1].batch.tolist()
        slower = rows[rows.speedup_high < 1].batch.tolist()
        unsure = [size for size in rows.batch if size not in (*faster, *slower)]
        verdicts = ((faster, "faster than the target alone"), (slower, "slower"), (unsure, "no clear difference"))
        parts = [f"{words} at batch {', '.join(map(str, sizes))}" for sizes, words in verdicts if sizes]
        lines.append(f"{name}: {'; '.join(parts)}.")
    return lines


def notes(figures: Throughput) -> Iterator[str]:
    yield (
        "tok/s: of a whole batch, from the end of the prefill of all models to the end of its longest text, which a "
        "fixed batch waits for; texts that have ended are computed no further"
    )
    yield "[ ]: 95 %, over batches, in pairs: every method decodes the same batches in one process"
    yield "τ: tokens a round of a text"
    yield (
        "texts as alone: greedy texts that the method also gives when it decodes them one by one; blocks of other "
        "shapes round differently, so near ties may go the other way"
    )
    yield "drafting in batches also takes the surprisals that training needs, a small part of a round"
    if ties := len(figures.divergences) - figures.bugs:
        yield f"{ties} lossless texts differ from vanilla's by a numeric tie"
    if figures.bugs:
        yield f"{figures.bugs} lossless texts differ from vanilla's, and not by a tie: a defect"
