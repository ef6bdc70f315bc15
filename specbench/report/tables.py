"""Tables for people and for programs: from summary rows to the terminal, CSV, Markdown or JSON."""

import io
import math
from collections.abc import Callable

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

FORMATS = ("table", "csv", "md", "json")


def number(digits: int, scale: float = 1.0) -> Callable[[object], str]:
    def text(value: object) -> str:
        return "-" if not isinstance(value, float | int) or math.isnan(value) else f"{value * scale:.{digits}f}"

    return text


percent = number(1, 100)

# Column of the summary -> heading and how it is written.
COLUMNS: dict[str, tuple[str, Callable[[object], str]]] = {
    "acceptance_rate": ("accept", percent),
    "alpha": ("α", percent),
    "tau": ("τ", number(2)),
    "discard_rate": ("discard", number(2)),
    "verification_rate": ("verify", number(2)),
    "rescue_rate": ("rescue", percent),
    "overhead": ("overhead", percent),
    "tokens_per_s": ("tok/s", number(0)),
    "tokens_per_s_mean": ("tok/s mean", number(0)),
}
NARROW = ("acceptance_rate", "alpha", "tau", "discard_rate", "verification_rate", "tokens_per_s")


def with_error(row: pd.Series) -> str:
    """Accuracy in percent with its standard error."""
    return f"{percent(row.accuracy)} ±{percent(row.accuracy_stderr)}"


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


def readable(summary: pd.DataFrame, wide: bool) -> pd.DataFrame:
    """The summary as texts under short headings: what is printed. `wide` shows every column."""
    cells = pd.DataFrame({"run": summary.run} if "run" in summary else {}, index=summary.index)
    cells["task"], cells["method"] = summary.task, summary.method
    cells["score"] = [with_error(row) for _, row in summary.iterrows()]
    for name, (heading, text) in COLUMNS.items():
        if wide or name in NARROW:
            cells[heading] = summary[name].map(text)
    cells["speedup [95 %]"] = [with_interval(row, "speedup_decode") for _, row in summary.iterrows()]
    if wide:
        cells["end to end [95 %]"] = [with_interval(row, "speedup_e2e") for _, row in summary.iterrows()]
        cells["memory MB"] = summary.peak_memory.map(number(0, 1e-6))
        cells["docs"] = summary.documents.map(number(0))
    if summary.errors.any():
        cells["failed"] = summary.errors.map(str)
    return cells


def render(summary: pd.DataFrame, format: str, width: int = 80) -> str:
    """The summary in one of FORMATS; `table` fits a terminal of `width` columns, one block per task."""
    if format == "csv":
        return summary.to_csv(index=False)
    if format == "json":
        return summary.to_json(orient="records", indent=1)
    cells = readable(summary, wide=format == "md" or width >= 150)
    if format == "md":
        lines = [list(cells.columns), ["---"] * len(cells.columns), *cells.astype(str).values.tolist()]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)
    titles = dict(zip(summary.task, summary.metric, strict=True))
    blocks = cells.groupby("task", sort=False)
    return "\n".join(_block(f"{task}  {titles[task]}", block, width) for task, block in blocks)


def _block(task: str, cells: pd.DataFrame, width: int) -> str:
    """One task's methods as a table without a task column."""
    table = Table(title=task, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    shown = cells.drop(columns="task")
    for heading in shown.columns:
        text = heading in ("run", "method")
        table.add_column(heading, justify="left" if text else "right", overflow="fold")
    for values in shown.astype(str).values.tolist():
        table.add_row(*values)
    canvas = Console(file=io.StringIO(), width=width)
    canvas.print(table)
    return canvas.file.getvalue().rstrip() + "\n"  # type: ignore[attr-defined]
