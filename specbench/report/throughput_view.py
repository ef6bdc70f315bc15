"""Throughput of fixed batches for the terminal, as Markdown, and as CSV or JSON for programs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specbench import run as engine
from specbench.batch_bench import BASE, Bench, Throughput
from specbench.complementarity import as_cells, write_cells
from specbench.config import MethodSpec, UserError
from specbench.console import console, progress
from specbench.plan import Plan
from specbench.published import papers
from specbench.report.acceptance_view import plain, write
from specbench.report.complementarity_view import Sheet, check_out, print_sheets
from specbench.report.simulate_view import numbers

PAPER, TABLE = "cospec", 9


def main(plan: Plan, batch: str, batches: int, out: Path | None, format: str) -> int:
    """Measure, and print `table`, `md`, `csv` or `json`; `out` is a file for the cells of the paper's table.

    Returns the exit code: 1 if a lossless greedy text leaves vanilla's where the logits are no numeric tie.
    """
    check_out(out)
    sizes = list(dict.fromkeys(int(x) for x in numbers("--batch", batch, whole=True)))
    if min(sizes, default=0) < 1:
        raise UserError(f"--batch {batch}: batches have at least one text, such as 1,2,4,8")
    bench = Bench(plan, engine.load_models(plan), sizes, batches)
    with progress("throughput", bench.total, aside=format != "table") as advance:
        bench.carry_out(advance)
    found = bench.result()
    if format in ("csv", "json"):
        write(plain(vars(found)), "throughput", format)
    else:
        title = f"FIXED BATCHES ({found.pair}, {found.suite}, {found.documents} documents, {found.sampling})"
        print_sheets(console, title, [sheet(found)], sentences(found), notes(found), format)
    if out:
        write_cells(out, cells(found, plan.methods))
    return int(bool(found.bugs))


def sheet(found: Throughput) -> Sheet:
    heads = ["method", "batch", "tok/s", "speedup [95 %]", "τ", "texts as alone"]
    rows = []
    for one in found.table.to_dict("records"):
        same = f"{one['equal']}/{one['compared']}" if one["compared"] else "-"
        tau = f"{one['tau']:.2f}"
        rows.append([one["method"], str(one["batch"]), f"{one['tokens_per_s']:.0f}", _ratio(one), tau, same])
    return Sheet("", heads, rows)


def _ratio(one: dict[str, Any]) -> str:
    if one["speedup"] != one["speedup"]:
        return "1 (base)" if one["method"] == BASE else "-"
    known = one["speedup_low"] == one["speedup_low"]
    return f"{one['speedup']:.2f}" + (f" [{one['speedup_low']:.2f}, {one['speedup_high']:.2f}]" if known else "")


def sentences(found: Throughput) -> list[str]:
    """For each method where it is faster than the target alone, where it is slower, and where nobody knows."""
    lines = []
    for name, rows in found.table[found.table.method != BASE].groupby("method", sort=False):
        faster = rows[rows.speedup_low > 1].batch.tolist()
        slower = rows[rows.speedup_high < 1].batch.tolist()
        rest = [size for size in rows.batch if size not in (*faster, *slower)]
        parts = ((faster, "faster than the target alone"), (slower, "slower"), (rest, "not told from it"))
        told = [f"{words} at batch {', '.join(map(str, sizes))}" for sizes, words in parts if sizes]
        lines.append(f"{name}: {'; '.join(told)}.")
    return lines


def notes(found: Throughput) -> Iterator[str]:
    """What a reader must know of these figures, a line each."""
    yield (
        "tok/s: of a whole batch, from the end of the prefill of all models to the end of its longest text, which a "
        "fixed batch waits for; in all methods rows are dropped once a quarter of them have ended"
    )
    yield "[ ]: 95 %, bootstrap over batches, in pairs: every method decodes the same batches in one process"
    yield "τ: tokens a round of a text"
    yield (
        "texts as alone: greedy ones that are what the method gives when it decodes them one by one; blocks of other "
        "shapes round otherwise, so near ties may fall otherwise"
    )
    yield "drafting in batches also takes the surprisals that training needs, a small part of a round"
    if ties := len(found.divergences) - found.bugs:
        yield f"{ties} lossless texts are not vanilla's by a numeric tie"
    if found.bugs:
        yield f"{found.bugs} lossless texts are not vanilla's, and by no tie: a defect"


def cells(found: Throughput, methods: Sequence[MethodSpec]) -> list[dict[str, Any]]:
    """Rows of a tidy file of figures, for the methods that the paper's table has."""
    labels = labels_of(methods, found.pair, TABLE)
    rows = []
    for one in found.table.to_dict("records"):
        if (label := labels.get(one["method"])) is None:
            continue
        told = [(label, "Throughput", one["tokens_per_s"], "tokens/s")]
        if one["speedup"] == one["speedup"]:
            told.append((label, "Speedup", one["speedup"], "x"))
        rows += as_cells(TABLE, found.pair, "", found.temperature, told, f"batch_size={one['batch']}")
    return rows


def labels_of(methods: Sequence[MethodSpec], pair: str, table: int) -> dict[str, str]:
    """What a table of the paper calls our methods, by our names; those of other settings than its own are left out.

    A trained arbitrator counts from whatever file it is; another arbiter does not.
    """
    (paper,) = papers([PAPER])
    found: dict[str, str] = {}
    for label in dict.fromkeys(figure.method for figure in paper.figures(table)):
        chosen = paper.choice(label, pair)
        for spec in methods:
            wanted = {"arbiter": spec.values.get("arbiter") and "trained", **(chosen.settings if chosen else {})}
            if chosen and chosen.method == spec.method and all(spec.values.get(k) == v for k, v in wanted.items()):
                found.setdefault(spec.name, label)
    return found
