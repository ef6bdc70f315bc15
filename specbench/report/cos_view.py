"""CoS's formulas beside measurement for the terminal (80 columns are enough), and as CSV or JSON for programs."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench.console import console
from specbench.cos_theory import ALL, ROUNDING, STANDARD, Collaboration, collaboration
from specbench.report.acceptance_view import plain, plain_table, say, write
from specbench.stored import StoredRun


def main(folder: Path, format: str) -> None:
    """Print how a run's methods of the CoS family keep to the paper: `table`, `csv` or `json`. Raises UserError."""
    found = collaboration(StoredRun(folder))
    if format == "table":
        print_collaboration(console, found)
    else:
        write(plain(vars(found)), "collaboration", format)


def print_collaboration(console: Console, found: Collaboration) -> None:
    """Print acceptance by proposer, then speedups beside what is foretold, then what they say of the theorems."""
    say(console, ["ACCEPTANCE of proposed tokens"])
    console.print(_acceptance(found))
    console.print()
    say(console, [f"SPEEDUP over {STANDARD}, foretold and measured"])
    console.print(_speed(found))
    console.print()
    say(console, sentences(found))
    console.print()
    say(console, notes(found), "dim")


def sentences(found: Collaboration) -> Iterator[str]:
    """What the figures say of Theorem 3.2, of Corollary 3.7, and of the predictions."""
    one = found.acceptance[(found.acceptance.proposer != ALL) & found.acceptance.bound.notna()]
    if positions := int(one.positions.sum()):
        below = int(one.below.sum())
        holds = "holds at all" if not below else f"FAILS at {below} of"
        yield f"Theorem 3.2 (overlap at least the proposer's weight) {holds} {positions} positions."
    told = found.speed[found.speed.corollary.notna()]
    for (method, verdict), rows in told.groupby(["method", "corollary"], sort=False):
        is_ = "is undecided" if verdict == "undecided" else verdict
        yield f"Corollary 3.7 (all γ = 1: never slower) {is_} for {method} on {', '.join(rows.task)}."
    for name, whose in (("predicted", "the theorems foretell"), ("chain", "our chain foretells")):
        ratios = pd.to_numeric(found.speed[f"over_{name}"]).dropna()
        if len(ratios):
            yield f"Measured speedups are {_range(ratios)} times what {whose}."


def notes(found: Collaboration) -> Iterator[str]:
    """What a reader must know of these figures, a line each."""
    if found.greedy:
        yield "greedy: α is the share of accepted tokens, since there are no distributions to overlap"
    else:
        yield "α: mean of Σ min(q, r) over judged tokens; accepted: the share of them that was, which differs by chance"
    if found.acceptance.bound.notna().any() and not found.greedy:
        yield f"lowest: of all scored positions; below: those under the bound by more than {ROUNDING:g} (float32)"
    if found.speed.theorem.notna().any():
        yield "Thm: 3.1 for cos-naive, 3.6 for cos, by α of all tokens; chain: both models' cycles, each with its own α"
        yield "neither knows of work outside forwards, of wider forwards' cost, and that acceptances come in runs"
    sources = dict.fromkeys(found.speed.c_of.dropna())
    if sources:
        yield f"c: seconds per forward of the proposer over the other model's, from {', '.join(sources)}"
    if found.speed.baseline.isna().any():
        yield f"- for a speedup: the method's baseline in this run is no {STANDARD}"
    if found.speed.theorem.isna().any():
        yield "the paper has no formula for cos-sd, and none for more than two models"


def _range(ratios: pd.Series) -> str:
    low, high = f"{ratios.min():.2f}", f"{ratios.max():.2f}"
    return low if low == high else f"{low} to {high}"


def _acceptance(found: Collaboration) -> Table:
    table = plain_table("")
    table.add_column("method", overflow="fold")
    table.add_column("proposer", no_wrap=True)
    bounded = bool(found.acceptance.lowest.notna().any())
    for name in ("tokens", "α", *([] if found.greedy else ["accepted"]), *(["lowest", "bound", "below"] * bounded)):
        table.add_column(name, justify="right", no_wrap=True)
    for task, rows in found.acceptance.groupby("task", sort=False):
        table.add_row(Text(str(task), "bold"))
        for method, mine in rows.groupby("method", sort=False):
            for i, row in enumerate(mine[-1:].itertuples() if len(mine) == 2 else mine.itertuples()):
                cells = [str(row.tokens), f"{row.alpha:.3f}", *([] if found.greedy else [f"{row.accepted:.3f}"])]
                if bounded:
                    cells += [_number(row.lowest, 3), _number(row.bound, 3), _number(row.below, 0)]
                table.add_row(Text(str(method) if i == 0 else ""), row.proposer, *cells)
    return table


def _speed(found: Collaboration) -> Table:
    table = plain_table("")
    table.add_column("method", overflow="fold")
    foretold = bool(found.speed.chain.notna().any())
    columns = ("γ", "c", "Thm", "chain", "measured", "/Thm", "/chain") if foretold else ("γ", "measured")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for task, rows in found.speed.groupby("task", sort=False):
        table.add_row(Text(str(task), "bold"))
        for row in rows.itertuples():
            known = not pd.isna(row.low)
            measured = _number(row.speedup) + (f" [{row.low:.2f}, {row.high:.2f}]" if known else "")
            cells = {"γ": row.gamma, "c": _number(row.c), "Thm": _number(row.predicted), "chain": _number(row.chain)}
            cells |= {"measured": measured, "/Thm": _number(row.over_predicted), "/chain": _number(row.over_chain)}
            table.add_row(Text(row.method), *(Text(cells[name]) for name in columns))
    return table


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None or pd.isna(value) else f"{value:.{digits}f}"
