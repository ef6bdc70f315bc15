"""Tables for people and for programs: rows of the summary for the terminal, or as Markdown, LaTeX, CSV or JSON."""

import io
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from specbench.base.console import PlainConsole, plain
from specbench.base.errors import did_you_mean
from specbench.base.escape import csv_text, latex_text, markdown_text
from specbench.config import UserError
from specbench.report.finding import Sheet

FORMATS = ("table", "csv", "md", "latex", "json", "parquet")
NEAR = 1e-6  # percent: what floating point leaves of a whole one
IDENTITY = ("pair", "sampling", "task", "method")


def number(digits: int, scale: float = 1.0) -> Callable[[object], str]:
    """A function that formats a number to so many digits, and a missing one as `-`."""

    def text(value: object) -> str:
        return "-" if not isinstance(value, float | int) or math.isnan(value) else f"{value * scale:.{digits}f}"

    return text


percent = number(1, 100)


@dataclass(frozen=True)
class Column:
    """A column for people, and the columns of the summary that it is made from."""

    heading: str
    text: Callable[[pd.Series], str]
    raw: tuple[str, ...]


def _plain(heading: str, name: str, text: Callable[[object], str]) -> Column:
    return Column(heading, lambda row: text(row[name]), (name,))


def _interval(heading: str, name: str) -> Column:
    return Column(heading, lambda row: with_interval(row, name), (name, f"{name}_low", f"{name}_high"))


def _latency(heading: str, name: str) -> Column:
    raw = tuple(f"{kind}_{name}_ms" for kind in ("mean", "median", "p99"))

    def text(row: pd.Series) -> str:
        return " / ".join("-" if math.isnan(row[column]) else f"{row[column]:.3g}" for column in raw)

    return Column(f"{heading} ms", text, raw)


def score(row: pd.Series) -> str:
    """A score in percent with its 95 % interval, in whole percents that hold it; `-` if there are no scores."""
    if math.isnan(row.accuracy):
        return "-"
    low, high = 100 * row.accuracy_low + NEAR, 100 * row.accuracy_high - NEAR
    return percent(row.accuracy) + ("" if math.isnan(low) else f" [{math.floor(low)}, {math.ceil(high)}]")


def with_interval(row: pd.Series, name: str) -> str:
    """A speedup with its 95 % interval; `=` marks one whose interval holds 1."""
    if math.isnan(row[name]):
        return "-"
    if row.method == row.baseline:
        return "1 (base)"
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if math.isnan(low):
        return f"{row[name]:.2f} [-]"
    return f"{row[name]:.2f} [{low:.2f}, {high:.2f}]{'=' if low <= 1 <= high else ''}"


def bounds(row: pd.Series, name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"[{low:.2f}, {high:.2f}]" if low < high else "-"


def p_value(p: float) -> str:
    return "-" if math.isnan(p) else "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


COLUMNS: dict[str, Column] = {
    "accuracy": Column("score [95 %]", score, ("accuracy", "accuracy_low", "accuracy_high", "accuracy_stderr")),
    "accuracy_delta": _plain("Δ", "accuracy_delta", number(1, 100)),
    "accuracy_p": Column("p", lambda row: p_value(row.accuracy_p), ("accuracy_p", "accuracy_test")),
    "acceptance_rate": _plain("accept", "acceptance_rate", percent),
    "acceptance_rate_in_text": _plain("accept in text", "acceptance_rate_in_text", percent),
    "alpha": _plain("α", "alpha", percent),
    "tau": _plain("τ", "tau", number(2)),
    "tau_interval": Column("τ [95 %]", lambda row: bounds(row, "tau"), ("tau_low", "tau_high")),
    "discard_rate": _plain("discard", "discard_rate", number(2)),
    "verification_rate": _plain("verify", "verification_rate", number(2)),
    "rescue_rate": _plain("rescue", "rescue_rate", percent),
    # 0 for methods without an arbitrator.
    "arbitrator_share": _plain("arbiter", "arbitrator_share", lambda share: percent(share or math.nan)),
    "overhead": _plain("overhead", "overhead", percent),
    "tokens_per_s": _plain("tok/s", "tokens_per_s", number(0)),
    "tokens_per_s_e2e": _plain("tok/s end to end", "tokens_per_s_e2e", number(0)),
    "tokens_per_s_mean": _plain("tok/s mean", "tokens_per_s_mean", number(0)),
    "speedup_decode": _interval("speedup [95 %]", "speedup_decode"),
    "speedup_e2e": _interval("end to end [95 %]", "speedup_e2e"),
    "request_throughput": _plain("req/s", "request_throughput", number(2)),
    "output_throughput": _plain("served tok/s", "output_throughput", number(0)),
    "ttft": _latency("TTFT", "ttft"),
    "tpot": _latency("TPOT", "tpot"),
    "itl": _latency("ITL", "itl"),
    "e2el": _latency("E2EL", "e2el"),
    "peak_memory": _plain("memory MB", "peak_memory", number(0, 1e-6)),
    "documents": _plain("docs", "documents", number(0)),
    "repeats": _plain("repeats", "repeats", number(0)),
    "accuracy_spread": _plain("score sd", "accuracy_spread", percent),
    "speedup_spread": _plain("speedup sd", "speedup_spread", number(3)),
    "cut": _plain("cut", "cut", percent),
    "errors": _plain("failed", "errors", number(0)),
    "limit_share": Column("of limit", lambda row: percent(row.limit_share), ("limit_share", "limit_unknown")),
}
ON_REQUEST = ("acceptance_rate_in_text", "limit_share")  # columns that are shown only on request
SERVED = ("request_throughput", "output_throughput", "ttft", "tpot", "itl", "e2el")  # hidden unless a server told them
COUNTED = ("acceptance_rate", "alpha", "tau")  # what a server's counters tell
CUT = 0.01  # the share of answers cut by the limit of new tokens from which tables show it
NARROW = ["accuracy", "accuracy_p", "acceptance_rate", "tau", "discard_rate", "verification_rate", "tokens_per_s"]
NARROW += ["arbitrator_share", "speedup_decode"]
# Those that make room for added columns and long names, the first ones first.
YIELDING = ("discard_rate", "accuracy_p", "verification_rate", "acceptance_rate", "tokens_per_s", "tokens_per_s_e2e")
ADDED = 2  # of YIELDING: left out as soon as a column is added
NOTHING = ("-", "1 (base)")  # cells that tell nothing if all of a column are such
BREAKS = re.compile(r"[^\[,@ ]*[\[,@ ]?")  # the parts of a name, which is broken between them
DEPTH_COLUMNS: dict[str, Column] = {
    "depth": _plain("depth", "depth", number(0)),
    "cond_accept": _plain("accepted if tested %", "cond_accept", percent),
    "joint_accept": _plain("accepted of all rounds %", "joint_accept", percent),
    "tested": _plain("tested", "tested", number(0)),
}
WORKER_COLUMNS: dict[str, Column] = {
    "worker": _plain("worker", "worker", number(0)),
    "host": _plain("host", "host", str),
    "device": _plain("device", "device", str),
    "documents": _plain("docs", "documents", number(0)),
    "tokens_per_s": _plain("tok/s", "tokens_per_s", number(1)),
    "speedup_decode": COLUMNS["speedup_decode"],
}


def choose(summary: pd.DataFrame, wide: bool) -> list[str]:
    """The columns that are printed by default: those that fit and hold more than one trivial value."""
    if not summary.documents.any():  # of servers alone
        return [name for name in (*COUNTED, *SERVED) if _known(summary, name)] or list(COUNTED)
    chosen = [name for name in COLUMNS if name not in ON_REQUEST] if wide else list(NARROW)
    silent = [name for name in SERVED if not _known(summary, name)]
    silent += [name for name in ("accuracy_spread", "speedup_spread") if summary[name].isna().all()]
    silent += ["repeats"] if (summary.repeats <= 1).all() else []
    arbitrated = (summary.arbitrator_share > 0).any()
    silent += ["verification_rate"] * (not wide) if arbitrated else ["arbitrator_share"]
    chosen = [column for name in chosen for column in _by_what_is_known(summary, name)]
    silent += [name for name in chosen if all(COLUMNS[name].text(row) in NOTHING for _, row in summary.iterrows())]
    wrong = {"cut": (summary.cut > CUT).any(), "errors": summary.errors.any()}
    return [*(name for name in chosen if name not in (*silent, *wrong)), *(name for name in wrong if wrong[name])]


WHOLE = {"speedup_decode": "speedup_e2e", "tokens_per_s": "tokens_per_s_e2e"}  # what is told with the prefill


def _by_what_is_known(summary: pd.DataFrame, name: str) -> list[str]:
    """The columns for a figure of decoding: some imported runs know whole times only, which have their own column."""
    if name in WHOLE.values():
        return [name] if name == "speedup_e2e" and summary.speedup_decode.notna().all() else []  # else it is beside
    whole = WHOLE.get(name)
    if whole is None:
        return [name]
    lacking = summary[name].isna() & summary[whole].notna()
    return [name] * bool(summary[name].notna().any()) + [whole] * bool(lacking.any())


def _known(summary: pd.DataFrame, name: str) -> bool:
    """True if a row has a figure in a column."""
    return bool(summary[list(COLUMNS[name].raw)].notna().any(axis=None))


def checked_columns(names: Sequence[str]) -> list[str]:
    """Names of COLUMNS. Raises UserError for an unknown one."""
    for name in names:
        if name not in COLUMNS:
            raise UserError(f"no column {name!r}{did_you_mean(name, COLUMNS)}; there are {', '.join(COLUMNS)}")
    return list(names)


def sort(summary: pd.DataFrame, by: str) -> pd.DataFrame:
    """Rows by a column of the summary, largest first; `NAME:asc`: smallest first. Raises UserError for another name."""
    name, _, direction = by.partition(":")
    if name not in summary or direction not in ("", "asc", "desc"):
        raise UserError(f"cannot sort by {by!r}; write COLUMN or COLUMN:asc, with one of {', '.join(summary.columns)}")
    return summary.sort_values(name, ascending=direction == "asc", kind="stable")


def render(summary: pd.DataFrame, format: str, width: int = 80, columns: Sequence[str] = (), by: str = "task") -> str:
    """The summary as text in one of FORMATS (but for parquet, which is no text).

    `table` fits a terminal of `width` columns and has a block for each `by`; `columns` are names of COLUMNS, and those
    written `+NAME` are printed beside the default ones.
    """
    if format in ("csv", "json"):
        raw = raw_columns(summary, columns)
        return csv_text(raw) if format == "csv" else raw.to_json(orient="records", indent=1)
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


def note(line: str, format: str) -> str:
    """A line of text beside a table, escaped for one of FORMATS."""
    return markdown_text(line) if format == "md" else plain(line)


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
        return csv_text(table) if format == "csv" else table.to_json(orient="records", indent=1)
    return _formatted(table, columns, format, width, "task")


def raw_columns(summary: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The summary for programs: all of it, or what the chosen columns are made from."""
    chosen, added = _requested(columns)
    if not chosen:
        hidden = [*ON_REQUEST, *(name for name in SERVED if not _known(summary, name))]
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
