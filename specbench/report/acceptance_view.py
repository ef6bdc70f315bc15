"""Reliability of predicted acceptance for the terminal (80 columns are enough), and as CSV or JSON for programs."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench.acceptance_analysis import Acceptance, acceptance
from specbench.console import console
from specbench.escape import csv_text
from specbench.stored import StoredRun

HEADINGS = {"ece": "ECE", "brier": "Brier", "auroc": "AUROC", "auroc_draft": "AUROC of 1−q(d)"}
HEADINGS |= {"auroc_difference": "difference", "stop_ece": "ECE of drafts"}


def main(folder: Path, method: str | None, format: str) -> None:
    """Print how reliable a method's predictions are: `table`, `csv` or `json`. Raises UserError where it has none."""
    found = acceptance(StoredRun(folder), method)
    if format == "table":
        print_acceptance(console, found)
    else:
        write(plain(vars(found) | {"selected": found.selected}), "acceptance", format)


def print_acceptance(console: Console, found: Acceptance) -> None:
    """Print the figures of every task, then the reliability on all tasks together, then notes."""
    last = found.tasks.iloc[-1]
    say(console, [f"PREDICTIONS OF {found.method}: {last.tokens} tested draft tokens of {last.documents} documents"])
    console.print(_overview(found))
    wanted = [name for name in ("auroc_draft", "auroc_difference") if (found.figures.figure == name).any()]
    for names in (["ece", "brier", "stop_ece"], ["auroc", *wanted]):
        console.print()
        console.print(_figures(found, names))
    for title, bins in (("reliability, tokens", found.bins), ("reliability, drafts", found.stops)):
        mine = bins[bins.task == last.task]
        if len(mine):
            console.print()
            console.print(_bins(f"{title} ({last.task})", mine))
    console.print()
    say(console, notes(found), "dim")


def notes(found: Acceptance) -> Iterator[str]:
    """What a reader must know of these figures, a line each."""
    yield "ECE: mean |prediction − share accepted| over 10 equal bins; [ ]: 95 %, by bootstrap over documents"
    yield "AUROC: how often a rejected token has the lower prediction than an accepted one"
    if found.unsure:
        yield f"q(d) was not recorded for {found.unsure} tokens (greedy drafts have none): no AUROC of the draft's own"
    else:
        yield "AUROC of 1−q(d): by the draft's own confidence, on the same tokens"
    yield "drafts: the predicted chance that all scored tokens of a draft are accepted, and the share where they were"
    if found.selected is None:
        yield "whether predictions kept tokens from being drafted is not told: the run's settings have no bounds"
    elif found.selected:
        yield (
            f"drafts of {found.shortest} to {found.longest} tokens: what lies beyond a stop was never seen, so these "
            "figures are of the tokens that the predictions let through; shortest = longest sees all"
        )
    else:
        yield f"all drafts may have {found.longest} tokens, whatever was predicted: no token was kept from its test"
    if found.rescued:
        yield f"{found.rescued} rescued tokens count as accepted"
    if found.unscored:
        yield f"{found.unscored} tested tokens have no prediction (the last one of a draft) and are left out"
    if found.unseen:
        yield f"{found.unseen} drafts are left out: the text ended before it was known whether all stand"


def _overview(found: Acceptance) -> Table:
    table = plain_table("")
    table.add_column("task", overflow="fold")
    for name in ("documents", "tokens", "accepted", "predicted", "drafts"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.tasks.itertuples():
        shares = f"{row.accepted:.1%}", f"{row.prediction:.1%}"
        table.add_row(Text(row.task), str(row.documents), str(row.tokens), *shares, str(row.drafts))
    return table


def _figures(found: Acceptance, names: list[str]) -> Table:
    table = plain_table("")
    table.add_column("task", overflow="fold")
    for name in names:
        table.add_column(HEADINGS[name], justify="right", no_wrap=True)
    figures = found.figures.set_index(["task", "figure"])
    for task in found.tasks.task:
        table.add_row(Text(task), *(between(figures.loc[(task, name)]) for name in names))
    return table


def _bins(title: str, bins: pd.DataFrame) -> Table:
    table = plain_table(title)
    for name in ("from", "to", "count", "predicted", "accepted"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in bins.itertuples():
        share = pd.Series({"value": row.accepted, "low": row.accepted_low, "high": row.accepted_high})
        table.add_row(f"{row.low:.1f}", f"{row.high:.1f}", str(row.count), f"{row.prediction:.3f}", between(share))
    return table


def between(one: pd.Series, sign: str = "") -> Text:
    """A value and its interval, to three decimals."""
    if one["value"] != one["value"]:
        return Text("-")
    known = one["low"] == one["low"]
    text = f" [{one['low']:{sign}.3f}, {one['high']:{sign}.3f}]" if known else ""
    return Text(f"{one['value']:{sign}.3f}{text}")


def plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts and tables as JSON knows them; what is undefined is null."""
    return {
        name: json.loads(value.to_json(orient="records", double_precision=12))
        if isinstance(value, pd.DataFrame)
        else value
        for name, value in facts.items()
    }


def write(facts: dict[str, Any], analysis: str, format: str) -> None:
    """Plain facts to standard output, as `json`, or as `csv`: one long table of analysis, table, row, column, value."""
    if format == "json":
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
        return
    rows: list[tuple[Any, ...]] = []
    for name, value in facts.items():
        if isinstance(value, list):
            rows += [(analysis, name, i, key, cell) for i, one in enumerate(value) for key, cell in one.items()]
        else:
            rows.append((analysis, "", 0, name, json.dumps(value) if isinstance(value, dict) else value))
    table = pd.DataFrame(rows, columns=["analysis", "table", "row", "column", "value"], dtype=object)
    sys.stdout.write(csv_text(table))


def plain_table(title: str) -> Table:
    """A table with a rule below its head."""
    style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "show_edge": False}
    return Table(title=Text(title, "italic") if title else None, title_justify="left", **style)


def say(console: Console, lines: Iterable[str], style: str = "") -> None:
    """Print lines as they are."""
    for line in lines:
        console.print(line, style=style, highlight=False, markup=False)
