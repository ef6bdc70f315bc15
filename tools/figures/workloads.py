"""Tables of the page on workloads: what each method is worth on each, and lookups on agents' recorded answers."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from figures.markdown import rows as _rows
from figures.stored import path_of, table

DRAFTING = ("sps", "pld", "suffix", "sam", "recycling", "lookahead", "grammar")
SMOLLM2, QWEN = ("workloads-smollm2", "everyday-smollm2"), ("workloads-qwen2.5-coder",)
WORKLOADS = {
    "prose": "prose",
    "code": "humaneval",
    "summary": "everyday_summary",
    "question about a text": "everyday_reading",
    "text to mend": "everyday_editing",
    "repeat verbatim": "repeat",
    "JSON under a schema": "schemas",
    "function calls under a schema": "bfcl_simple",
}
Cell = tuple[int, str]  # of how many texts, and the figure


def workloads() -> str:
    """Tokens a round of each method on `smollm2` by workload, with intervals."""
    return _by_workload([*_constrained(), *_measured(SMOLLM2, _tau)])


def workloads_speeds() -> str:
    """How much faster than vanilla each decodes there, where times were taken."""
    return _by_workload(list(_measured(SMOLLM2, _speedup)))


def workloads_qwen() -> str:
    """Tokens a round on `qwen2.5-coder`."""
    return _by_workload(list(_measured(QWEN, _tau)))


def workloads_qwen_speeds() -> str:
    """How much faster than vanilla each decodes there, where times were taken."""
    return _by_workload(list(_measured(QWEN, _speedup)))


def _by_workload(figures: list[tuple[str, str, Cell]]) -> str:
    """A row for each workload and a column for each method that have any; of two cells at a place the last counts."""
    cells: dict[tuple[str, str], Cell] = {(task, method): cell for task, method, cell in figures}
    methods = [method for method in DRAFTING if any(method == other for _, other in cells)]
    spans = {_of_agent(task): task for task, _ in sorted(cells, key=_start) if task.startswith("agent ")}
    lines = []
    for name, task in (WORKLOADS | spans).items():
        mine = {method: cells[task, method] for method in methods if (task, method) in cells}
        if mine:
            texts = sorted({count for count, _ in mine.values()}, reverse=True)
            shown = [mine[method][1] if method in mine else "" for method in methods]
            lines.append([f"{name} ({', '.join(map(str, texts))})", *shown])
    return _rows(["workload (texts)", *(f"`{method}`" for method in methods)], lines)


def _constrained() -> Iterator[tuple[str, str, Cell]]:
    """Task, method and τ of texts under a schema."""
    for run in json.loads(path_of("constrained-smollm2.json").read_text())["runs"]:
        for method, tau in run["tau"].items():
            yield "schemas", method, (run["texts"], f"{tau:.2f}")
    for method, figures in json.loads(path_of("calls-smollm2.json").read_text())["schema"]["methods"].items():
        yield "bfcl_simple", method, (figures["texts"], f"{figures['tau']:.2f}")


def _measured(files: Sequence[str], figure: Callable[[Any], str]) -> Iterator[tuple[str, str, Cell]]:
    """Task, method and figure of every row that has one; the last file counts."""
    for name in files:
        rows = table(name)
        for row in rows[rows.get("workload", rows.get("task")) != "average"].itertuples():
            if shown := figure(row):
                yield getattr(row, "workload", None) or row.task, row.method, (row.documents, shown)


def _start(key: tuple[str, str]) -> int:
    return int(key[0].split()[1]) if key[0].startswith("agent ") else 0


def _of_agent(task: str) -> str:
    first, _, last = task.removeprefix("agent ").partition(" to ")
    return f"agent, {int(first) // 1024}k to {(int(last) + 1) // 1024}k tokens"


def _tau(row: Any) -> str:
    return _bounded(row, "tau")


def _speedup(row: Any) -> str:
    return "" if pd.isna(row.speedup_decode) else _bounded(row, "speedup_decode")


def _bounded(row: Any, name: str) -> str:
    figure, low, high = (getattr(row, name + end) for end in ("", "_low", "_high"))
    return f"{figure:.2f}" + ("" if pd.isna(low) else f" [{low:.2f}, {high:.2f}]")


def replayed_agent() -> str:
    """Tokens a round of lookups on the recorded answers of agents, by the tokens before."""
    rows = table("replay-agent")
    rows = rows[rows.tau_low.notna()]
    columns = list(dict.fromkeys(zip(rows.pair, rows.method, strict=True)))
    lines = []
    for start, there in rows.groupby("from"):
        cells = {(row.pair, row.method): _tau(row) for row in there.itertuples()}
        texts = ", ".join(map(str, dict.fromkeys(there.documents)))
        span = f"{int(start) // 1024}k to {int(there.to.iloc[0]) // 1024}k ({texts})"
        lines.append([span, *(cells.get(column, "") for column in columns)])
    return _rows(["tokens before (conversations)", *(f"`{method}`, {pair}" for pair, method in columns)], lines)
