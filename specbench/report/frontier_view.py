"""Two families of methods by verification and discard rate, for the terminal, and as CSV or JSON for programs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench.console import console
from specbench.frontier import LEAST, Frontier, frontier, sentence
from specbench.report.acceptance_view import between, plain, plain_table, say, write
from specbench.stored import StoredRun


def main(folder: Path, method: str, against: str | None, best: str | None, format: str) -> None:
    """Print whether one frontier is below the other: `table`, `csv` or `json`. Raises UserError as `frontier` does."""
    found = frontier(StoredRun(folder), method, against, best)
    if format == "table":
        print_frontier(console, found)
    else:
        write(as_facts(found), "frontier", format)


def as_facts(found: Frontier) -> dict[str, Any]:
    """All of it as JSON knows it; `sentences` by task."""
    facts = vars(found) | {"method": vars(found.method), "against": vars(found.against)}
    return plain(facts) | {"sentences": {task: sentence(found, task) for task in found.documents}}


def print_frontier(console: Console, found: Frontier) -> None:
    """Print both curves, the comparison and its sentence for each task, then what there is of the oracle's gain."""
    for task, documents in found.documents.items():
        say(console, [f"{task}: {documents} documents that all of these methods decoded"], "bold")
        console.print(_curve(found, task))
        console.print()
        console.print(_comparison(found, task))
        say(console, [sentence(found, task)])
        console.print()
    if len(found.gains):
        console.print(_gains(found))
    say(console, notes(found), "dim")


def notes(found: Frontier) -> Iterator[str]:
    """What a reader must know of these figures, a line each."""
    one, other = found.method.name, found.against.name
    yield (
        f"difference: discard rate of {one} less that of {other} at the same verification rate, interpolated between "
        f"the points of {other}; [ ]: 95 %, paired bootstrap over documents"
    )
    yield (
        "undecided: the interval has 0, or under 95 % of the resamples (how many is in brackets) compare; not "
        f"comparable: no variant of {other} verifies as much or as little"
    )
    if found.oracle is None:
        yield "no row of an oracle in this run: what share of its gain a policy has is not known"
    else:
        how = "as asked" if found.best_given else f"the fastest {other}, chosen on these very documents"
        yield f"gains are counted from {found.best} ({how}); 1 is {found.oracle}, time per token"


def _curve(found: Frontier, task: str) -> Table:
    table = plain_table("")
    table.add_column("method", overflow="fold")
    for name in ("setting", "verify", "discard"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.points[found.points.task == task].itertuples():
        table.add_row(Text(row.method), Text(str(row.setting)), f"{row.verification:.3f}", f"{row.discard:.3f}")
    return table


def _comparison(found: Frontier, task: str) -> Table:
    table = plain_table("")
    table.add_column(found.method.setting or "setting")
    for name in ("verify", "discard", found.against.name, "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in found.compared[found.compared.task == task].to_dict("records"):
        cells = [f"{row[name]:.3f}" if row[name] == row[name] else "-" for name in ("verification", "discard", "other")]
        difference = between(pd.Series({**row, "value": row["difference"]}), "+")
        rare = row["verdict"] == "undecided" and row["comparable"] < LEAST
        verdict = row["verdict"] + (f" ({row['comparable']:.0%})" if rare else "")
        table.add_row(Text(str(found.method.values[row["method"]])), *cells, difference, verdict)
    return table


def _gains(found: Frontier) -> Table:
    table = plain_table(f"share of {found.oracle}'s gain over {found.best}")
    for name in ("task", found.method.setting or "setting"):
        table.add_column(name)
    table.add_column("share", justify="right", no_wrap=True)
    for row in found.gains.rename(columns={"share": "value"}).to_dict("records"):
        table.add_row(Text(row["task"]), Text(str(found.method.values[row["method"]])), between(pd.Series(row)))
    return table
