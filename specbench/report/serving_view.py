"""What serving costs, for the terminal, as Markdown, and as CSV or JSON for programs."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specbench.complementarity import as_cells, write_cells
from specbench.console import console, progress
from specbench.report.acceptance_view import plain, write
from specbench.report.complementarity_view import Sheet, check_out, print_sheets
from specbench.report.throughput_view import labels_of
from specbench.serving import Serving, serving
from specbench.stored import StoredRun

TABLE = 11
LEAST = 1000  # bytes: less is no part worth telling
COUNTS = {"arbitrator_forwards": 3, "rollouts": 0, "prompts": 0}


def main(folder: Path, out: Path | None, format: str) -> None:
    """Print the cost of serving a run's methods: `table`, `md`, `csv` or `json`; `out` is for the paper's table."""
    check_out(out)
    run = StoredRun(folder)
    with progress("serving", len(run.plan.methods), aside=format != "table") as advance:
        found = serving(run, advance)
    if format in ("csv", "json"):
        write(plain(vars(found)), "serving", format)
    else:
        title = f"SERVING ({found.pair}, {found.sampling}), memory on a text of {found.tokens} tokens"
        print_sheets(console, title, [memory(found), times(found)], [], notes(found), format)
    if out:
        write_cells(out, cells(run, found))


def memory(found: Serving) -> Sheet:
    parts = ["target", "draft", "own", "cache", "total"]
    if found.table.peak.notna().any():
        parts.append("peak")
    rows = []
    for one in found.table.to_dict("records"):
        rows.append([one["method"], *(_bytes(one.get(part, math.nan)) for part in parts)])
    return Sheet("", ["MB", *parts], rows)


def times(found: Serving) -> Sheet:
    rows = []
    for one in found.table.to_dict("records"):
        counts = [f"{one[name]:.{digits}f}" if one[name] == one[name] else "-" for name, digits in COUNTS.items()]
        rows.append([one["method"], _overhead(one), *counts])
    return Sheet("", ["method", "first token [95 %]", "arbitrator/round", "rollouts", "prompts"], rows)


def _bytes(count: float) -> str:
    if count != count or count < LEAST:
        return "-"
    return f"{count / 1e6:.{max(0, 2 - max(0, math.floor(math.log10(count / 1e6))))}f}"


def _overhead(one: dict[str, Any]) -> str:
    """In percent of vanilla's time, with its interval."""
    if one["first_token"] != one["first_token"]:
        return "-"
    low, high = one["first_token_low"], one["first_token_high"]
    known = f" [{100 * (low - 1):+.1f}, {100 * (high - 1):+.1f}]" if low == low else ""
    return "0 (base)" if one["first_token"] == 1 and not known else f"{100 * (one['first_token'] - 1):+.1f} %{known}"


def notes(found: Serving) -> Iterator[str]:
    """What a reader must know of these figures, a line each."""
    yield (
        "memory: tensors that the method holds at the end of the run's longest text, each once; an arbitrator shares "
        "the draft's weights; own: adapters, heads and what else it keeps; peak: of the GPU's allocator, all in all"
    )
    yield (
        "first token: the method's prefill against vanilla's on the same document, the median over documents with the "
        "exact interval of a median"
    )
    yield "arbitrator/round: its forwards a round; rollouts (of a prompt) and prompts (of an update): of its training"


def cells(run: StoredRun, found: Serving) -> list[dict[str, Any]]:
    """Rows of a tidy file of figures, for the methods that the paper's table has."""
    labels = labels_of(run.plan.methods, found.pair, TABLE)
    told: list[tuple[str, str, float, str]] = []
    for one in found.table.to_dict("records"):
        if (label := labels.get(one["method"])) is None:
            continue
        total = one["peak"] if one["peak"] == one["peak"] else one["total"]
        told.append((label, "Serving memory", total * 1e-9, "GB"))
        if one["method"] != "vanilla":
            told.append((label, "Time to first token overhead", 100 * (one["first_token"] - 1), "%"))
        told += [
            (label, metric, one[name], "count")
            for name, metric in (
                ("arbitrator_forwards", "Arbitrator forwards per round"),
                ("rollouts", "RL rollouts per prompt"),
                ("prompts", "Prompts per update"),
            )
        ]
    return as_cells(TABLE, found.pair, "", found.temperature, [row for row in told if row[2] == row[2]])
