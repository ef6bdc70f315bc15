"""Drafts on recorded texts for the terminal (80 columns are enough), and as CSV or JSON for programs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench import records
from specbench.config import UserError
from specbench.console import console, progress
from specbench.replay_target import ALL, Replayed, by_depth, by_task, check_ids, find_drafter, read_traces, replay
from specbench.report.acceptance_view import plain, plain_table, say, write


def main(
    traces: Path, method: str, assignments: Sequence[str], pair: str | None, format: str, out: Path | None
) -> None:
    """Replay and print; `out` gets the positions as Parquet. Raises UserError as the functions of replay_target."""
    if out and (out.suffix != ".parquet" or not out.parent.is_dir()):
        raise UserError(f"--out {out}: name a .parquet file in a folder that exists")
    name, drafter, gamma = find_drafter(method, assignments, pair)
    texts = read_traces(traces)
    if pair:
        check_ids(texts, pair)
    if format == "table":
        with progress(name, len(texts)) as advance:
            found = replay(name, drafter, gamma, texts, advance)
        print_replay(console, found)
    else:
        found = replay(name, drafter, gamma, texts)
        facts = {"method": name, "texts": found.texts, "by_task": by_task(found), "by_depth": by_depth(found)}
        write(plain(facts), "replay", format)
    if out:
        records.write_frame(out, found.positions)
        if format == "table":
            console.print(f"written: {out}", highlight=False, markup=False, soft_wrap=True)


def print_replay(console: Console, found: Replayed) -> None:
    """Print the figures of each task and of all, then of each level, then what they mean."""
    say(console, [f"{found.method} on {found.texts} recorded texts"])
    console.print(_tasks(by_task(found)))
    depths = by_depth(found)
    if len(depths):
        console.print()
        console.print(_depths(depths[depths.task == ALL]))
    console.print()
    say(console, notes(found), "dim")


def notes(found: Replayed) -> Iterator[str]:
    """What the figures mean, a line each."""
    yield "position: behind a generated token; found: share of positions with a draft"
    yield "drafted: tokens a position; accepted: levels that the text goes along"
    yield "τ: tokens a round, of the rounds that greedy decoding lays; µs: host, a draft"
    yield "reached: the draft has this level, and the text goes along all those above"
    without = found.texts - found.positions.text.nunique()
    if without:
        yield f"texts of fewer than two generated tokens, which have no position: {without}"


def _tasks(rows: pd.DataFrame) -> Table:
    table = plain_table("")
    table.add_column("task", overflow="fold")
    for name in ("texts", "positions", "found", "drafted", "accepted", "rounds", "τ", "µs"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows.iloc[-1:].itertuples() if len(rows) == 2 else rows.itertuples():
        counts = str(row.texts), str(row.positions)
        means = f"{row.drafted:.2f}", f"{row.accepted:.2f}", str(row.rounds), f"{row.tau:.2f}"
        table.add_row(Text(row.task), *counts, f"{row.found:.1%}", *means, f"{row.microseconds:.0f}")
    return table


def _depths(rows: pd.DataFrame) -> Table:
    table = plain_table("by depth, all tasks")
    for name in ("depth", "drafted", "reached", "accepted", "of reached", "of all"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows.itertuples():
        share = "-" if row.acceptance != row.acceptance else f"{row.acceptance:.1%}"
        table.add_row(str(row.depth), str(row.drafted), str(row.tested), str(row.accepted), share, f"{row.joint:.1%}")
    return table
