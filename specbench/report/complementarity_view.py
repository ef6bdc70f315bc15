"""Complementarity for the terminal (80 columns are enough), as Markdown, and as CSV or JSON for programs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench.complementarity import Complementarity, cells, complementarity, write_cells
from specbench.config import UserError
from specbench.console import console
from specbench.escape import markdown_text
from specbench.report.acceptance_view import plain, plain_table, say, write
from specbench.report.words import LEVEL
from specbench.stats import holm
from specbench.stored import StoredRun

SOLVERS = ("target", "draft", "union")


@dataclass(frozen=True)
class Sheet:
    """A table of texts; all columns but the first `words` hold numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1

    def table(self) -> Table:
        table = plain_table(self.title)
        for i, head in enumerate(self.heads):
            table.add_column(
                head, justify="left" if i < self.words else "right", no_wrap=i >= self.words, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def markdown(self) -> str:
        rules = ["---" if i < self.words else "---:" for i in range(len(self.heads))]
        head, *rows = (list(map(markdown_text, row)) for row in (self.heads, *self.rows))
        lines = [f"| {' | '.join(row)} |" for row in (head, rules, *rows)]
        return "\n".join([markdown_text(self.title), "", *lines] if self.title else lines)


def main(
    folder: Path,
    method: str | None,
    draft: Path | None,
    out: Path | None,
    allowed: Sequence[str],
    format: str,
) -> None:
    """Print what target, draft and either solve, and what methods recover: `table`, `md`, `csv` or `json`.

    `out` is a file for the cells of the paper's table. Raises UserError as `complementarity` does.
    """
    check_out(out)
    run = StoredRun(folder)
    found = complementarity(run, method, StoredRun(draft) if draft else None, allowed)
    if format in ("csv", "json"):
        told = dict(zip(found.tasks.task, sentences(found), strict=True))
        write(plain(vars(found)) | {"sentences": told}, "complementarity", format)
    else:
        title = f"COMPLEMENTARITY of target and draft ({found.pair}, {found.sampling})"
        print_sheets(console, title, sheets(found), sentences(found), notes(found), format)
    if out:
        write_cells(out, cells(run, found))


def check_out(out: Path | None) -> None:
    if out and not out.absolute().parent.is_dir():
        raise UserError(f"there is no folder {out.parent}; make it, or choose another --out")


def print_sheets(
    console: Console,
    title: str,
    sheets: Sequence[Sheet],
    sentences: Sequence[str],
    notes: Iterator[str],
    format: str,
) -> None:
    """Tables, then what they say in words, then what a reader must know; as `table` or `md`."""
    if format == "md":
        tables = [sheet.markdown() for sheet in sheets]
        blocks = [markdown_text(title), *tables, *map(markdown_text, sentences), *map(markdown_text, notes)]
        console.out("\n\n".join(blocks), highlight=False)
        return
    say(console, [title], "bold")
    for sheet in sheets:
        console.print(sheet.table())
        console.print()
    say(console, sentences)
    console.print()
    say(console, notes, "dim")


def sheets(found: Complementarity) -> list[Sheet]:
    """Two tables for tasks that are right or wrong, and two for graded ones."""
    made = []
    for graded in (False, True):
        tasks = found.tasks[found.tasks.graded == graded]
        if tasks.empty:
            continue
        most = "best of both" if graded else "union"
        made.append(
            Sheet(
                "graded scores, not right or wrong: means over texts" if graded else "",
                ["task", "total", "target", "draft", most, f"{most} less target"],
                [
                    [one["task"], str(one["total"]), *(_count(one, name) for name in SOLVERS), _points(one, "gap")]
                    for one in tasks.to_dict("records")
                ],
            )
        )
        if found.methods.empty:
            continue
        own = found.methods[found.methods.graded == graded]
        totals = dict(zip(tasks.task, tasks.total, strict=True))
        rows = []
        for one, p in zip(own.to_dict("records"), holm(own.p.tolist()), strict=True):
            one |= {"total": totals[one["task"]]}
            cells = [one["task"], one["method"], _count(one, "correct"), f"{100 * one['difference']:+.1f}"]
            rows.append([*cells, "<.001" if p < 0.001 else f"{p:.3f}", recovery(one)])
        heads = ["task", "method", "mean" if graded else "correct", "points", "p", "recovery"]
        made.append(Sheet("", heads, rows, 2))
    return made


def _count(one: dict[str, Any], name: str) -> str:
    return f"{100 * one[name] / one['total']:.1f}" if one["graded"] else f"{one[name]:.0f}"


def _points(one: dict[str, Any], name: str) -> str:
    """A share of texts in percent with its interval, behind the count."""
    low, high = one[f"{name}_low"], one[f"{name}_high"]
    known = f" [{100 * low:.1f}, {100 * high:.1f}]" if low == low else ""
    value = f"{100 * one[name] / one['total']:.1f}{known}"
    return value if one["graded"] else f"{one[name]:.0f}: {value} %"


def recovery(one: dict[str, Any]) -> str:
    """In percent with its interval; - where it is not defined."""
    if one["recovery"] != one["recovery"]:
        return "-"
    low, high = one["recovery_low"], one["recovery_high"]
    return f"{100 * one['recovery']:.0f} %" + (f" [{100 * low:.0f}, {100 * high:.0f}]" if low == low else "")


def sentences(found: Complementarity) -> list[str]:
    """What the tables say, a line each task."""
    lines = []
    for one in found.tasks.to_dict("records"):
        if one["gap"] <= 0:
            missing = "the best of both is nowhere better" if one["graded"] else "the union solves no more"
            lines.append(f"{one['task']}: complementarity is missing: {missing} than the target, so - for recovery.")
            continue
        if one["graded"]:
            had = f"the best of both is {100 * one['gap'] / one['total']:.1f} points above the target"
        else:
            had = f"the draft alone solves {one['gap']:.0f} of the {one['total'] - one['target']:.0f} texts that the "
            had += "target does not"
        own = found.methods[found.methods.task == one["task"]] if len(found.methods) else pd.DataFrame()
        told = [f"{row['method']} {_recovered(row)}" for row in own.to_dict("records")]
        lines.append("; ".join([f"{one['task']}: {had}", *told]) + ".")
    return lines


def _recovered(one: dict[str, Any]) -> str:
    value, low = one["recovery"], one["recovery_low"]
    if value <= 0:
        lost = "falls below the target" if value < 0 else "recovers nothing of it"
        return lost + (" (more than chance makes)" if one["recovery_high"] < 0 else "")
    doubt = "" if low > 0 else ", which may be chance"
    return f"recovers {100 * value:.0f} % of it{doubt}"


def notes(found: Complementarity) -> Iterator[str]:
    """What a reader must know of these figures, a line each."""
    yield f"target: {found.target}; draft: {found.draft}; union: solved by at least one of the two"
    yield "recovery: (method − target) / (union − target), in right answers; - where the union is the target"
    yield "[ ]: 95 %, Wilson's of shares, paired bootstrap over documents of recovery; points: method less target"
    yield f"p: McNemar's of right-or-wrong scores, by Holm for all rows of its table; below {LEVEL} it is no chance"
    if found.graded:
        yield (
            "Table 2 of the paper is for right-or-wrong tasks; of graded ones (ROUGE) the better of the two scores of "
            "each document stands for the union, and a permutation test for McNemar's"
        )
    if found.methods.empty:
        yield "no method of this run may leave the target's answers; --method sets a lossless one against it"
    if found.repeats > 1:
        yield f"{found.repeats} repeats: totals count texts, a text for each repeat of a document"
    if found.left_out:
        yield f"{found.left_out} texts are left out, which the draft or a method did not answer"
