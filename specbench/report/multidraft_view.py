"""Acceptance of several drafts for the terminal (80 columns are enough), and as CSV or JSON for programs."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench.config import UserError
from specbench.console import console, progress
from specbench.multidraft_analysis import ALL, MultiDraft, multi_draft, texts_to_read
from specbench.report.acceptance_view import between, plain, plain_table, say, write
from specbench.stored import StoredRun

RULES = {"single": "one draft", "recursive": "recursive rejection", "optimal": "the best rule"}


def main(folder: Path, method: str | None, drafts: str, format: str) -> None:
    """Print what several drafts (`drafts` is their numbers, such as 2,3) would give: `table`, `csv` or `json`.

    Raises UserError as `texts_to_read` and `multi_draft` do.
    """
    run, several = StoredRun(folder), numbers(drafts)
    texts = texts_to_read(run, method)
    if format == "table":
        with progress("reading texts", len(texts)) as advance:
            found = multi_draft(run, texts, several, advance)
        print_multi_draft(console, found)
    else:
        found = multi_draft(run, texts, several)
        write(plain(vars(found) | {"methods": ", ".join(found.methods)}), "multi-draft", format)


def numbers(text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise UserError(f"--drafts {text}: give whole numbers with commas between them, such as 2,3") from None


def print_multi_draft(console: Console, found: MultiDraft) -> None:
    """Print acceptance on all tasks with intervals, then by task, then what the run itself measured."""
    last = found.figures.task.iloc[-1]
    texts = f"{found.positions} positions of {found.documents} documents, texts of {', '.join(found.methods)}"
    say(console, [f"ACCEPTANCE OF SEVERAL DRAFTS ({last}; {found.sampling})", texts])
    console.print(_total(found.figures[found.figures.task == last]))
    if last == ALL:
        console.print()
        console.print(_by_task(found.figures))
    if len(found.measured):
        console.print()
        console.print(_measured(found.measured))
    console.print()
    say(console, [sentence(found)])
    console.print()
    say(console, notes(found), "dim")


def sentence(found: MultiDraft) -> str:
    """Whether the figures are in their order, at every position."""
    if found.outside:
        return f"WRONG: {found.outside} figures of recursive rejection are below one draft's or above the best rule's."
    return "At every position recursive rejection is between one draft and the best rule."


def notes(found: MultiDraft) -> Iterator[str]:
    """What a reader must know of these figures, a line each."""
    yield "acceptance: the chance that the token that follows, as the target draws it, is one of the drafts"
    yield "the best rule: the optimal transport of arXiv 2502.18779; no lossless rule accepts more of the same drafts"
    yield "[ ]: 95 %, bootstrap over documents; the first token of a text is the prefill's, and no draft precedes it"
    if (most := found.figures.left_out.max()) > 0:
        yield f"three drafts without replacement: a lower bound of recursive rejection, at most {most:.1g} too low"
    if len(found.measured):
        yield "measured: rounds whose first level was accepted, and what is foretold for the same positions"
        if found.measured.foretold.isna().any():
            yield "- no formula: more drafts than are known here, or a draft with another output layer"


def _total(figures: pd.DataFrame) -> Table:
    table = plain_table("")
    table.add_column("drafts", justify="right")
    table.add_column("replacement", no_wrap=True)
    table.add_column("rule", no_wrap=True)
    table.add_column("acceptance", justify="right", no_wrap=True)
    table.add_column("over one", justify="right", no_wrap=True)
    one = figures["value"].iloc[0]
    for _, row in figures.iterrows():
        over = "" if row.rule == "single" else f"{row['value'] - one:+.3f}"
        table.add_row(str(row.drafts), _kind(row.replacement), RULES[row.rule], between(row), over)
    return table


def _by_task(figures: pd.DataFrame) -> Table:
    table = plain_table("by task, drawn without replacement")
    table.add_column("task", overflow="fold")
    table.add_column("positions", justify="right")
    mine = figures[(figures.replacement != True) & (figures.task != ALL)]  # noqa: E712
    for row in mine[mine.task == mine.task.iloc[0]].itertuples():
        head = {"single": "one", "recursive": f"{row.drafts} recursive", "optimal": f"{row.drafts} best"}
        table.add_column(head[row.rule], justify="right")
    for task, rows in mine.groupby("task", sort=False):
        table.add_row(Text(str(task)), str(rows.positions.iloc[0]), *(f"{value:.3f}" for value in rows["value"]))
    return table


def _measured(measured: pd.DataFrame) -> Table:
    table = plain_table("measured in this run")
    table.add_column("method", overflow="fold")
    for name in ("drafts", "rounds", "accepted", "foretold", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    for _, row in measured.iterrows():
        known = row.foretold == row.foretold
        cells = [f"{row.drafts:.0f}" if known else "-", str(row.rounds), f"{row.accepted:.3f}"]
        table.add_row(Text(row.method), *cells, f"{row.foretold:.3f}" if known else "-", between(row, "+"))
    return table


def _kind(replacement: bool | None) -> str:
    return {True: "with", False: "without"}.get(replacement, "")  # type: ignore[arg-type]
