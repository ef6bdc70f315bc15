"""Tables for people and for programs: rows of the summary for the terminal, or as Markdown, LaTeX, CSV or JSON."""

import io
import re
import textwrap
from collections.abc import Sequence

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from specbench.base.console import PlainConsole, plain
from specbench.config import UserError
from specbench.report.columns import COLUMNS, ON_REQUEST, SERVED, Column, checked_columns, choose, is_known
from specbench.report.finding import Sheet

FORMATS = ("table", "csv", "md", "latex", "json", "parquet")
IDENTITY = ("pair", "sampling", "task", "method")
# Those that make room for added columns and long names, the first ones first.
YIELDING = ("discard_rate", "accuracy_p", "verification_rate", "acceptance_rate", "tokens_per_s", "tokens_per_s_e2e")
ADDED = 2  # of YIELDING: left out as soon as a column is added
BREAKS = re.compile(r"[^\[,@ ]*[\[,@ ]?")  # the parts of a name, which is broken between them


def sort(summary: pd.DataFrame, by: str) -> pd.DataFrame:
    """Rows by a column of the summary, largest first; `NAME:asc`: smallest first. Raises UserError for another name."""
    name, _, direction = by.partition(":")
    if name not in summary or direction not in ("", "asc", "desc"):
        raise UserError(f"cannot sort by {by!r}; write COLUMN or COLUMN:asc, with one of {', '.join(summary.columns)}")
    return summary.sort_values(name, ascending=direction == "asc", kind="stable")


def render(summary: pd.DataFrame, format: str, width: int = 80, columns: Sequence[str] = (), by: str = "task") -> str:
    """The summary as text in one of FORMATS (but for parquet, which is no text).

    `table` fits a terminal of `width` columns and has a block for each `by`; `columns` are names of COLUMNS, and those
    written `+NAME` are printed next to the default ones.
    """
    if format in ("csv", "json"):
        return _data(raw_columns(summary, columns), format)
    chosen, added = _requested(columns)
    yielding: list[str] = []
    if not chosen:
        wide = format != "table" or width >= 150
        chosen = [name for name in choose(summary, wide) if wide or not added or name not in YIELDING[:ADDED]]
        yielding = [name for name in YIELDING if name in chosen and name not in added]
    chosen += [name for name in added if name not in chosen]
    shown = {name: COLUMNS[name] for name in chosen}
    left_out = _left_out(summary, shown, yielding, width, by) if format == "table" else []
    text = _formatted(summary, {name: shown[name] for name in shown if name not in left_out}, format, width, by)
    missing = ", ".join(COLUMNS[name].heading for name in left_out)
    notes = [f"no room for {missing}: widen the terminal, or take --format md"] if left_out else []
    notes += [note(line, format) for line in (limit_notes(summary) if "limit_share" in chosen else [])]
    if format == "table":
        notes = [textwrap.fill(line, width) for line in notes]
    before = {"latex": "% ", "md": "- "}.get(format, "")
    return text if not notes else text.rstrip() + "\n\n" + "".join(f"{before}{line}\n" for line in notes)


def _data(table: pd.DataFrame, format: str) -> str:
    """A table for programs, as `csv` or `json`."""
    if format == "json":
        return table.to_json(orient="records", indent=1)
    from specbench.base.escape import csv_text  # here and below: no terminal needs it

    return csv_text(table)


def note(line: str, format: str) -> str:
    """A line of text next to a table, escaped for one of FORMATS."""
    if format != "md":
        return plain(line)
    from specbench.base.escape import markdown_text

    return markdown_text(line)


def limit_notes(summary: pd.DataFrame) -> list[str]:
    """What `of limit` means, and why it is missing for some methods."""
    lines = []
    if summary.limit_share.notna().any():
        lines.append(
            "of limit: least time to read the weights and caches of the recorded forwards, in % of the decode time"
        )
    missing = summary[summary.limit_share.isna() & (summary.limit_unknown != "")]
    by_reason = missing.groupby("limit_unknown", sort=False).method.agg(lambda names: ", ".join(dict.fromkeys(names)))
    if len(by_reason):
        every = len(missing) == len(summary) and len(by_reason) == 1
        parts = [reason if every else f"{names}: {reason}" for reason, names in by_reason.items()]
        lines.append(f"of limit is not known: {'; '.join(parts)}")
    return lines


def render_other(table: pd.DataFrame, columns: dict[str, Column], format: str, width: int = 80) -> str:
    """Acceptance by depth (DEPTH_COLUMNS) or workers (WORKER_COLUMNS) as text in one of FORMATS."""
    if format in ("csv", "json"):
        return _data(table, format)
    return _formatted(table, columns, format, width, "task")


def raw_columns(summary: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The summary for programs: all of it, or what the chosen columns are made from."""
    chosen, added = _requested(columns)
    if not chosen:
        hidden = [*ON_REQUEST, *(name for name in SERVED if not is_known(summary, name))]
        silent = [name for column in hidden if column not in added for name in COLUMNS[column].raw]
        return summary.drop(columns=silent)
    raw = dict.fromkeys(name for column in [*chosen, *added] for name in COLUMNS[column].raw)
    return summary[[*IDENTITY, *raw]]


def _requested(columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """The columns to print instead of the default ones, and those to add. Raises UserError for an unknown one."""
    added = [name[1:] for name in columns if name.startswith("+")]
    return checked_columns([name for name in columns if not name.startswith("+")]), checked_columns(added)


def _cells(rows: pd.DataFrame, columns: dict[str, Column], without: str = "") -> pd.DataFrame:
    """The identity columns that vary, but for the one `without`, then `columns`, as texts."""
    varying = [name for name in ("pair", "sampling") if rows[name].nunique() > 1]
    cells = rows[[name for name in (*varying, "task", "method") if name != without]].astype(str)
    return cells.assign(
        **{column.heading: [column.text(row) for _, row in rows.iterrows()] for column in columns.values()}
    )


def _left_out(rows: pd.DataFrame, columns: dict[str, Column], yielding: list[str], width: int, by: str) -> list[str]:
    """The columns to leave out, of those `yielding`, so that no name is broken within a part of it."""
    cells = _cells(rows, columns, by)
    left_out: list[str] = []
    for name in yielding:
        if sum(_least(cells[heading]) + 1 for heading in cells) - 1 <= width:
            break
        left_out.append(name)
        cells = cells.drop(columns=columns[name].heading)
    return left_out


def _least(column: "pd.Series[str]") -> int:
    """The characters that a column needs: a name's longest part, or a figure as a whole."""
    texts = [str(column.name), *column]
    return max(
        map(len, [part for text in texts for part in BREAKS.findall(text)] if column.name in IDENTITY else texts)
    )


def _formatted(rows: pd.DataFrame, columns: dict[str, Column], format: str, width: int, by: str) -> str:
    """Identity columns that vary, then `columns`, as a Markdown or LaTeX table or as blocks for the terminal."""
    cells = _cells(rows, columns, by if format == "table" else "")
    if format == "md":
        return markdown(cells)
    if format == "latex":
        return latex(cells)
    metrics = {}
    if by == "task" and "metric" in rows:
        metrics = {task: metric.iloc[0] for task, metric in rows.groupby("task").metric if metric.nunique() == 1}
    blocks = cells.groupby(rows[by], sort=False)
    return "\n".join(_block(f"{name}  {metrics.get(name, '')}".rstrip(), block, width) for name, block in blocks)


def markdown(cells: pd.DataFrame) -> str:
    """A Markdown table of texts."""
    return Sheet(list(cells.columns), cells.astype(str).values.tolist(), align="l" * len(cells.columns)).markdown()


def latex(cells: pd.DataFrame) -> str:
    """A booktabs table of texts."""
    from specbench.base.escape import latex_text

    align = "".join("l" if name in (*IDENTITY, "metric", "run") else "r" for name in cells.columns)
    texts = cells.astype(str).map(latex_text).set_axis(list(map(latex_text, cells.columns)), axis=1)
    return texts.to_latex(index=False, escape=False, column_format=align).rstrip()


def _block(title: str, cells: pd.DataFrame, width: int) -> str:
    """One block of rows for the terminal, below its title."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    room = width - sum(_least(cells[heading]) + 1 for heading in cells) + 1
    for heading in cells.columns:
        table.add_column(heading, justify="left" if heading in IDENTITY else "right", overflow="fold")
        if heading in IDENTITY:
            least = _least(cells[heading])
            longest = max(map(len, cells[heading]))
            given = least + max(0, min(room, longest - least))
            room -= given - least
            cells = cells.assign(**{heading: [_broken(text, given) for text in cells[heading]]})
    for values in cells.values.tolist():
        table.add_row(*map(Text, values))
    canvas = PlainConsole(file=io.StringIO(), width=width)
    canvas.print(Text(title, "italic"))
    canvas.print(table)
    return canvas.file.getvalue().rstrip() + "\n"  # type: ignore[attr-defined]


def _broken(name: str, width: int) -> str:
    """A name on lines of at most `width` characters, broken between its parts."""
    lines = [""]
    for part in BREAKS.findall(name):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)
