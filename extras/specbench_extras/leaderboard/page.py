"""The leaderboard as a page that needs no network, as CSV, or as Markdown."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis.pooled import SETUP
from specbench.base import files
from specbench.base.console import console, say
from specbench.base.escape import csv_text, markdown_text
from specbench.config import UserError
from specbench.report import page_parts, tables
from specbench.report.columns import COLUMNS, MEANINGS, Column, number, with_interval
from specbench.report.finding import Sheet
from specbench.report.words import FEWEST
from specbench.results.stored import StoredRun
from specbench_extras.leaderboard.analysis import ENDS, FACTS, Group, groups, history

SUFFIXES = (".html", ".csv", ".md")
LEADS = "●"
SPEEDUP = Column("speedup [95 %]", lambda row: with_interval(row, "speedup"), tuple(f"speedup{end}" for end in ENDS))
FIGURES: Mapping[str, Column] = {
    "speedup": SPEEDUP,
    "compared": Column("n", lambda row: number(0)(row["compared"]), ("compared",)),
    **{
        name: COLUMNS[name]
        for name in ("accuracy", "tokens_per_s", "acceptance_rate", "tau", "documents", "cut", "errors")
    },
}
ABOUT = {name: MEANINGS[name] for name in FIGURES if name in MEANINGS} | {
    "speedup": f"{MEANINGS['speedup_decode']}; with the prefill where the decode time is not known",
    "compared": "documents that the speedup is of",
}
VERDICTS = {"speed_verdict": "speed: verdict", "score_verdict": "score: verdict"}
NOTES = (
    f"{LEADS} marks the fastest method of a pair and task in its group, of those whose score is not significantly "
    "lower, and those that are not shown to be slower.",
    "Groups are of runs with the same machine, versions, dtype, runtime, models, documents and prompts; speeds of "
    "different groups do not compare, so rows are sorted within their group.",
    f"A verdict needs an interval and {FEWEST} documents; p values have Holm's correction within a group. A speedup "
    "above τ, or of a GPU that was slowed, is no speedup and is left out.",
)


def leaderboard(folders: Sequence[Path], out: Path, by: str = "method", sort: str | None = None) -> None:
    """Write the leaderboard of some runs as a page, CSV or Markdown, by the suffix of `out`.

    `by` is `method`, which pools runs that repeat each other, or `run`, which keeps them apart, in their order.
    Raises UserError for another suffix, a page by run (it has both), an unknown column, and folders as `groups`.
    """
    kind = out.suffix.lower()
    if kind not in SUFFIXES:
        raise UserError(f"{out} has no suffix that a leaderboard can be written to; use .html, .csv or .md")
    if kind == ".html" and by != "method":
        raise UserError(f"a page has both tables, by method and by run; leave out --by {by}, or write .csv or .md")
    with console.status(f"reading {len(folders)} runs"):
        found = groups(folders)
        rows = {group.name: group.rows if sort is None else tables.sort(group.rows, sort) for group in found}
        if kind == ".html":
            _write_page(out, found, rows)
        else:
            table = pd.concat(rows.values(), ignore_index=True) if by == "method" else history(found)
            table = table if by == "method" or sort is None else tables.sort(table, sort)
            text = csv_text(table) if kind == ".csv" else _markdown(found, table, by)
            files.write_text(out, text)
    for line in apart(found):
        say(line)
    count = sum(len(group.runs) for group in found)
    say(f"written: {out} ({sum(map(len, rows.values()))} rows of {count} runs; groups that compare: {len(found)})")


def _identity(rows: pd.DataFrame) -> list[str]:
    return [name for name in SETUP if name == "pair" or rows[name].nunique() > 1] + ["task"]


def _figures(rows: pd.DataFrame) -> dict[str, Column]:
    """The columns of figures that hold any."""
    none = {"cut": 0, "errors": 0}
    return {
        name: column
        for name, column in FIGURES.items()
        if not rows[column.raw[0]].dropna().isin([none.get(name)]).all()
    }


def heading(group: Group) -> str:
    """What a group was measured on."""
    first = {name: FACTS[name](group.runs[0]) for name in ("machine", "dtype", "runtime", "batch")}
    text = f"{group.name}: {first['machine']}, {first['dtype']}, {first['runtime']} runtime"
    return text + f", batches of {first['batch']}" * (first["batch"] != "1")


def apart(found: Sequence[Group]) -> list[str]:
    """Why each group but the first is one of its own."""
    return [f"Group {group.name} does not compare with A: {group.differs}." for group in found[1:]]


def about(group: Group, run: StoredRun) -> dict[str, str]:
    """A run's row in the table of runs."""
    counts = ", ".join(f"{task}: {len(documents)}" for task, documents in run.documents().items())
    facts = {name: fact(run) for name, fact in FACTS.items()}
    return {
        "group": group.name,
        "run": facts.pop("run"),
        "started": facts.pop("started"),
        "pair": run.plan.pair.name,
        "sampling": run.sampling,
        "documents": counts,
        **facts,
    }


def _markdown(found: Sequence[Group], rows: pd.DataFrame, by: str) -> str:
    blocks = ["# Leaderboard", "\n".join(f"- {markdown_text(line)}" for line in [*NOTES, *apart(found)])]
    before = [] if by == "method" else ["run", "started", "commit", "load"]
    for group in found:
        of_group = rows[rows.group == group.name]
        blocks += [f"## {markdown_text(heading(group))}", _sheet(of_group, before).markdown()]
        blocks += ["\n".join(f"- {markdown_text(line)}" for line in group.warnings)] if group.warnings else []
    runs = [about(group, run) for group in found for run in group.runs]
    blocks += ["## Runs", Sheet([*runs[0]], [[*one.values()] for one in runs], align="l" * len(runs[0])).markdown()]
    return "\n\n".join(blocks) + "\n"


def _sheet(rows: pd.DataFrame, before: Sequence[str]) -> Sheet:
    names, figures = [*before, *_identity(rows), "method"], _figures(rows)
    heads = [*names, "leads", *VERDICTS.values(), *(column.heading for column in figures.values())]
    lines = [
        [*(row[name] for name in names), LEADS * row.leads]
        + [row[name] for name in VERDICTS]
        + [column.text(row) for column in figures.values()]
        for _, row in rows.iterrows()
    ]
    return Sheet(heads, lines, align="l" * (len(names) + 1 + len(VERDICTS)) + "r" * len(figures))


def _write_page(out: Path, found: Sequence[Group], of_group: Mapping[str, pd.DataFrame]) -> None:
    rows, passes = pd.concat(of_group.values(), ignore_index=True), history(found)
    names, figures = ["group", *_identity(rows)], _figures(rows)
    before = ["started", "commit", "load", "run"]

    def made(table: pd.DataFrame, before: Sequence[str], after: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {
                **{name: row[name] for name in ("pair", "task", "method", "withheld")},
                "names": [row[name] for name in (*before, *names)],
                "verdicts": [LEADS * row.leads, *(row[name] for name in VERDICTS)],
                "cells": page_parts.cells([*figures.values()], row, table),
                "after": [row[name] for name in after],
            }
            for _, row in table.iterrows()
        ]

    page_parts.write(
        out,
        Path(__file__).parent / "leaderboard.html.j2",
        nonce=hashlib.sha256(csv_text(rows).encode()).hexdigest()[:24],
        css=page_parts.source("page.css"),
        js=page_parts.source("table.js"),
        notes=[*NOTES, *apart(found)],
        names=names,
        verdicts=["leads", *VERDICTS.values()],
        columns=page_parts.heads(figures, ABOUT, rows),
        groups=[(heading(group), made(of_group[group.name], (), ["run"])) for group in found],
        warnings=[f"{group.name}: {line}" for group in found for line in group.warnings],
        before=before,
        passes=made(passes, before, ()),
        runs=[about(group, run) for group in found for run in group.runs],
        choices={name: list(rows[name].drop_duplicates()) for name in ("pair", "task", "method")},
    )
