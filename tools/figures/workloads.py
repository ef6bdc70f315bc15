"""Tables of the page on workloads: what each method is worth on each, and lookups on agents' recorded answers."""

import json
from collections.abc import Iterator

import pandas as pd

from figures.markdown import rows as _rows
from figures.stored import path_of, table

DRAFTING = ("sps", "pld", "suffix", "sam", "recycling", "lookahead", "grammar")
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
    """Tokens a round of each method by workload, with intervals, and speedups where times were taken."""
    cells: dict[tuple[str, str], Cell] = {(task, method): cell for task, method, cell in _cells()}
    spans = {_of_agent(task): task for task, _ in sorted(cells, key=_start) if task.startswith("agent ")}
    lines = []
    for name, task in (WORKLOADS | spans).items():
        mine = {method: cells[task, method] for method in DRAFTING if (task, method) in cells}
        if mine:
            texts = sorted({count for count, _ in mine.values()}, reverse=True)
            shown = [mine[method][1] if method in mine else "" for method in DRAFTING]
            lines.append([f"{name} ({', '.join(map(str, texts))})", *shown])
    return _rows(["workload (texts)", *(f"`{method}`" for method in DRAFTING)], lines)


def workloads_qwen() -> str:
    """The same on `qwen2.5-coder`."""
    rows = table("workloads-qwen2.5-coder")
    lines = []
    for name, task in WORKLOADS.items():
        mine = rows[rows.workload == task].set_index("method")
        if len(mine):
            cells = {method: _tau(row) for method, row in zip(mine.index, mine.itertuples(), strict=True)}
            texts = str(mine.documents.max())
            lines.append([f"{name} ({texts})", *(cells.get(method, "") for method in DRAFTING[:-1])])
    return _rows(["workload (texts)", *(f"`{method}`" for method in DRAFTING[:-1])], lines)


def _cells() -> Iterator[tuple[str, str, Cell]]:
    """Task, method and cell of every figure; the timed ones come last, and count."""
    for run in json.loads(path_of("constrained-smollm2.json").read_text())["runs"]:
        for method, tau in run["tau"].items():
            yield "schemas", method, (run["texts"], f"{tau:.2f}")
    for method, figures in json.loads(path_of("calls-smollm2.json").read_text())["schema"]["methods"].items():
        yield "bfcl_simple", method, (figures["texts"], f"{figures['tau']:.2f}")
    for row in table("workloads-smollm2").itertuples():
        yield row.workload, row.method, (row.documents, _tau(row))
    for row in table("everyday-smollm2").itertuples():
        yield row.task, row.method, (row.documents, f"{_tau(row)}, {row.speedup_decode:.2f} ×")


def _start(key: tuple[str, str]) -> int:
    return int(key[0].split()[1]) if key[0].startswith("agent ") else 0


def _of_agent(task: str) -> str:
    first, _, last = task.removeprefix("agent ").partition(" to ")
    return f"agent, {int(first) // 1024}k to {(int(last) + 1) // 1024}k tokens"


def _tau(row: object) -> str:
    tau, low, high = (getattr(row, name) for name in ("tau", "tau_low", "tau_high"))
    return f"{tau:.2f}" + ("" if pd.isna(low) else f" [{low:.2f}, {high:.2f}]")


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
