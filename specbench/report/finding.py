"""The results of an analysis or a study, as people and programs read them. Every view makes a Finding.

A terminal of 80 columns and Markdown get the tables, what they say in sentences, and what a reader must know of them.
CSV and JSON get the figures.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench.base import files
from specbench.base.console import console

COLUMNS = ["analysis", "table", "row", "column", "value"]


@dataclass(frozen=True)
class Sheet:
    """A table of texts. A row with fewer cells than there are headings names the rows below it."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    title: str = ""
    align: str = ""  # `l` or `r` for each column; by default the first holds words, on the left, and the others numbers

    @property
    def sides(self) -> str:
        return self.align or "l" + "r" * (len(self.headings) - 1)

    def table(self) -> Table:
        """For a terminal: words may be wrapped, numbers may not."""
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for heading, side in zip(self.headings, self.sides, strict=True):
            words = side == "l"
            table.add_column(heading, justify="left" if words else "right", no_wrap=not words, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
        return table

    def markdown(self) -> str:
        from specbench.base.escape import markdown_text  # here and below: no terminal needs it

        rules = ["---" if side == "l" else "---:" for side in self.sides]
        rows = [[*map(str, row), *[""] * (len(self.headings) - len(row))] for row in (self.headings, *self.rows)]
        head, *body = (list(map(markdown_text, row)) for row in rows)
        lines = [f"| {' | '.join(row)} |" for row in (head, rules, *body)]
        return "\n".join([markdown_text(self.title), "", *lines] if self.title else lines)


@dataclass(frozen=True)
class Finding:
    """Figures in words and tables for people, and as they are for programs."""

    name: str  # of the analysis or the study
    title: str = ""
    sheets: Sequence[Sheet] = ()
    sentences: Sequence[str] = ()  # what the figures say
    notes: Sequence[str] = ()  # what a reader must know of the figures
    facts: Mapping[str, Any] = field(default_factory=dict)  # the figures; a data frame is a table
    frame: pd.DataFrame | None = None  # what CSV has instead of the facts


def show(finding: Finding | Sequence[Finding], format: str = "table", screen: Console | None = None) -> None:
    """Print findings to a terminal (`table`; by default the commands' own), or as `md`, `csv` or `json`."""
    screen = screen or console
    findings = [finding] if isinstance(finding, Finding) else finding
    if format == "csv":
        from specbench.base.escape import csv_text

        sys.stdout.write(csv_text(pd.concat(map(as_rows, findings))))
    elif format == "json":
        facts = {finding.name: as_json(finding) for finding in findings}
        sys.stdout.write(files.json_text(facts if len(findings) > 1 else facts[findings[0].name], indent=1) + "\n")
    elif format == "md":
        screen.out("\n\n".join(map(markdown, findings)), highlight=False)
    else:
        for i, finding in enumerate(findings):
            if i:
                screen.print()
            _print(finding, screen)


def as_json(finding: Finding) -> dict[str, Any]:
    """The figures as JSON knows them: tables are lists of rows, and an undefined value in a table is null."""
    return {
        name: json.loads(value.to_json(orient="records", double_precision=12))
        if isinstance(value, pd.DataFrame)
        else value
        for name, value in finding.facts.items()
    }


def as_rows(finding: Finding) -> pd.DataFrame:
    """The figures in one long table of COLUMNS; `table` is empty for a figure that is in none."""
    if finding.frame is not None:
        return finding.frame
    rows: list[tuple[Any, ...]] = []
    for name, value in as_json(finding).items():
        if isinstance(value, list):
            rows += [(name, i, column, cell) for i, row in enumerate(value) for column, cell in row.items()]
        else:
            rows.append(("", 0, name, value))
    cells = [
        (finding.name, *row[:-1], files.json_text(row[-1]) if isinstance(row[-1], dict) else row[-1]) for row in rows
    ]
    return pd.DataFrame(cells, columns=COLUMNS, dtype=object)


def markdown(finding: Finding) -> str:
    """The tables, sentences and notes with an empty line between them."""
    from specbench.base.escape import markdown_text

    tables = [sheet.markdown() for sheet in finding.sheets]
    words = [*finding.sentences, *finding.notes]
    title = [finding.title] if finding.title else []
    return "\n\n".join([*map(markdown_text, title), *tables, *map(markdown_text, words)])


def _print(finding: Finding, screen: Console) -> None:
    print_lines(screen, [finding.title] if finding.title else [], "bold")
    words = [(lines, style) for lines, style in ((finding.sentences, ""), (finding.notes, "dim")) if lines]
    blocks: list[Sheet | tuple[Sequence[str], str]] = [*finding.sheets, *words]
    for i, block in enumerate(blocks):
        if i:
            screen.print()
        if isinstance(block, Sheet):
            print_lines(screen, [block.title] if block.title else [], "italic")
            screen.print(block.table())
        else:
            print_lines(screen, *block)


def print_lines(screen: Console, lines: Iterable[str], style: str = "") -> None:
    """Print lines as they are; long ones are wrapped."""
    for line in lines:
        screen.print(line, style=style, highlight=False, markup=False)


def number(value: float | None, form: str = ".2f") -> str:
    """A number in a table; - where it is not known."""
    return "-" if value is None or pd.isna(value) else format(value, form)


def bounds(low: float, high: float, form: str = ".2f") -> str:
    """An interval to stand after its value; nothing where it is not known."""
    return "" if pd.isna(low) else f" [{low:{form}}, {high:{form}}]"


def estimate(row: Mapping[str, Any], form: str = ".3f") -> str:
    """The `value` of a row with its interval, `low` to `high`."""
    value = number(row["value"], form)
    return value if value == "-" else value + bounds(row["low"], row["high"], form)
