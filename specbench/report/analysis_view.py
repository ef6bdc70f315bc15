"""Rejections and rescues for the terminal (80 columns are enough), and as CSV or JSON for programs."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench.analysis import FREQUENT, SPREAD, Rejections, Rescues, rejections, rescues
from specbench.config import UserError
from specbench.console import console
from specbench.escape import csv_text
from specbench.report.trace_view import visible
from specbench.stored import StoredRun
from specbench.texts import load_decode
from specbench.trace import ratio_text

FORMATS = ("table", "csv", "json")
SHARES = (0.01, 0.05, FREQUENT, 0.5)
BEFORE = 34  # characters of the text before an example
PAPER = "CSD's paper (arXiv 2604.13634; Llama-3 70B with 1B)"


def main(folder: Path, method: str | None, format: str) -> None:
    """Print the rejections and rescues of a run. Raises UserError for another format, or a run without drafts."""
    if format not in FORMATS:
        raise UserError(f"--format {format} is not for rejections; choose one of {', '.join(FORMATS)}")
    run = StoredRun(folder)
    decode = load_decode(run)
    refused, rescued = rejections(run, method, decode), rescues(run, method, decode)
    if format == "table":
        print_analysis(console, refused, rescued)
    elif format == "json":
        sys.stdout.write(json.dumps(as_json(refused, rescued), indent=1) + "\n")
    else:
        sys.stdout.write(csv_text(as_rows(refused, rescued)))


def print_analysis(console: Console, refused: Rejections, rescued: Rescues) -> None:
    """Print the long tail of rejections, then the rescues by kind with examples."""
    _say(console, _tail(refused))
    if refused.total:
        console.print(_top(refused))
    _say(console, _rejection_notes(refused), "dim")
    console.print()
    if not rescued.total:
        _say(console, [f"{rescued.method} rescued no token."])
        return
    _say(console, [f"RESCUED BY {rescued.method}: {_count(rescued.total, 'token')}"])
    console.print(_kinds(rescued))
    console.print()
    console.print(_examples(rescued))
    _say(console, _rescue_notes(rescued), "dim")


def as_json(refused: Rejections, rescued: Rescues) -> dict[str, Any]:
    """Both analyses with all their tables; what is undefined is null."""
    return {"rejections": _plain(refused), "rescues": _plain(rescued)}


def as_rows(refused: Rejections, rescued: Rescues) -> pd.DataFrame:
    """All figures in one long table: analysis, table (empty: a figure that stands alone), row, column, value."""
    rows = []
    for analysis, facts in as_json(refused, rescued).items():
        for name, found in facts.items():
            if isinstance(found, list):
                rows += [(analysis, name, i, key, value) for i, one in enumerate(found) for key, value in one.items()]
            else:
                rows.append((analysis, "", 0, name, found))
    table = pd.DataFrame(rows, columns=["analysis", "table", "row", "column", "value"], dtype=object)
    return table.assign(value=[json.dumps(v) if isinstance(v, dict) else v for v in table.value])


def _plain(found: Rejections | Rescues) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, value in vars(found).items():
        frame = isinstance(value, pd.DataFrame)
        facts[name] = json.loads(value.to_json(orient="records", double_precision=12)) if frame else value
    if isinstance(found, Rejections):
        share = found.covered(FREQUENT)
        facts["frequent_pairs"], facts["frequent_share"] = FREQUENT, share if share == share else None
    return facts


def _tail(one: Rejections) -> Iterator[str]:
    yield f"REJECTIONS OF {one.method}: {one.total} of {_count(len(one.pairs), 'pair')} (draft token, target token)"
    if one.total:
        shares = ", ".join(f"{share:.0%} of pairs {one.covered(share):.1%}" for share in SHARES)
        yield f"share of them that the most frequent pairs make up: {shares}"
        once = int((one.pairs["count"] == 1).sum())
        yield f"pairs that occur once: {once} ({once / len(one.pairs):.1%})"


def _top(one: Rejections) -> Table:
    table = _table("the most frequent pairs, and their ratios p(draft)/p(target)")
    for name in ("draft", "target"):
        table.add_column(name, overflow="fold")
    for name in ("count", *SPREAD):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("tasks", overflow="fold")
    prefixes = {task.rpartition("_")[0] for tasks in one.top.tasks for task in tasks}
    shared = f"{prefixes.pop()}_" if len(prefixes) == 1 else ""
    for row in one.top.to_dict("records"):
        tasks = ", ".join(f"{task.removeprefix(shared)} {count}" for task, count in row["tasks"].items())
        ratios = [ratio_text(row[name]) for name in SPREAD]
        table.add_row(_token(row["draft"]), _token(row["target"]), str(row["count"]), *ratios, Text(tasks))
    return table


def _kinds(one: Rescues) -> Table:
    table = _table("by kind; in ( ): documents" if one.baseline else "by kind")
    table.add_column("kind")
    outcomes = ["stays right", "goes wrong", "share wrong"] if one.baseline else []
    for name in ("tokens", "share", *outcomes):
        table.add_column(name, justify="right", no_wrap=True)
    for row in one.kinds[one.kinds["count"] > 0].to_dict("records"):
        cells = [row["kind"], str(row["count"]), f"{row['share']:.1%}"]
        if outcomes:
            cells += [f"{row[name]} ({row[f'{name}_documents']})" for name in ("right", "wrong")]
            cells.append("-" if row["wrong_share"] != row["wrong_share"] else f"{row['wrong_share']:.1%}")
        table.add_row(*cells)
    return table


def _examples(one: Rescues) -> Table:
    table = _table("examples of frequent pairs")
    table.add_column("text before", justify="right", no_wrap=True)
    for name in ("drafted", "target's"):
        table.add_column(name, overflow="fold")
    for name in ("ratio", "count"):
        table.add_column(name, justify="right", no_wrap=True)
    last = ""
    for row in one.examples.to_dict("records"):
        if row["kind"] != last:
            last = row["kind"]
            table.add_row(Text(last, "bold", justify="left"))
        before = visible(row["before"])
        before = f"…{before[-BEFORE:]}" if len(before) > BEFORE else before
        tokens = _token(row["draft"]), _token(row["target"])
        table.add_row(Text(before), *tokens, ratio_text(row["ratio"]), str(row["count"]))
    return table


def _rejection_notes(one: Rejections) -> Iterator[str]:
    if one.total:
        yield "ratios: of the target's probabilities at temperature 1; q1, q3: quartiles; ␣ is a space"
        yield f"the shares depend on how many rejections there are; {PAPER}: {FREQUENT:.0%} of pairs 69.0%"
    if one.rescued:
        yield (
            f"{one.method} sees fewer rejections than a lossless method: {_count(one.rescued, 'mismatch', 'es')} that "
            "it rescued are not among them"
        )
    if one.unpaired:
        yield (
            f"{_count(one.unpaired, 'more rejected token')} had no pair: sampling refused what the target itself "
            "preferred"
        )


def _rescue_notes(one: Rescues) -> Iterator[str]:
    if one.baseline:
        left = f"; {one.unjudged} more tokens are in others" if one.unjudged else ""
        yield f"stays right, goes wrong: by {one.method}, in documents that {one.baseline} has right{left}"
        yield "a rescue in a text that goes wrong need not be the one that spoilt it"
    else:
        yield "which rescues hurt is not known: that needs scores, and a baseline beside the method"
    yield "word for word: whether two words mean the same is not judged; other: parts of words and all the rest"
    yield f"{PAPER}, of 100: formatting 45, punctuation and spacing 20, synonyms 20, connectives 15"


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)


def _token(text: str) -> Text:
    return Text(visible(text).replace(" ", "␣"))


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number != 1 else ''}"


def _say(console: Console, lines: Iterator[str] | list[str], style: str = "") -> None:
    for line in lines:
        console.print(line, style=style, highlight=False, markup=False)
