"""What serving costs: memory by part, then the time to the first token and what an arbitrator takes."""

import math
from collections.abc import Iterator
from typing import Any

from specbench.report.finding import Finding, Sheet, bounds, number
from specbench_extras.serving.study import PERCENTILES, Serving

LEAST = 1000  # bytes: a part with fewer is not shown
COUNTS = {"arbitrator_forwards": ".3f", "rollouts": ".0f", "prompts": ".0f"}


def view(figures: Serving) -> Finding:
    title = f"SERVING ({figures.pair}, {figures.sampling}), memory on a text of {figures.tokens} tokens"
    return Finding(
        "serving",
        title,
        [_memory(figures), _latencies(figures), _times(figures)],
        notes=[*notes()],
        facts=vars(figures),
    )


def _memory(figures: Serving) -> Sheet:
    parts = ["target", "draft", "own", "cache", "total"]
    if figures.table.peak.notna().any():
        parts.append("peak")
    rows = [
        [row["method"], *(_megabytes(row.get(part, math.nan)) for part in parts)]
        for row in figures.table.to_dict("records")
    ]
    return Sheet(["MB", *parts], rows)


def _latencies(figures: Serving) -> Sheet:
    """The time to the first token and the time per token after it, in ms."""
    names = [f"{name}_p{percent}" for name in ("ttft", "tpot") for percent in PERCENTILES]
    rows = [[row["method"], *(_milliseconds(row[name]) for name in names)] for row in figures.table.to_dict("records")]
    return Sheet(["ms", *(f"{name[:4].upper()} {name[5:]}" for name in names)], rows)


def _milliseconds(seconds: float) -> str:
    return "too few" if seconds != seconds else f"{1000 * seconds:.3g}"


def _times(figures: Serving) -> Sheet:
    rows = [
        [row["method"], _overhead(row), *(number(row[name], form) for name, form in COUNTS.items())]
        for row in figures.table.to_dict("records")
    ]
    return Sheet(["method", "first token [95 %]", "arbitrator/round", "rollouts", "prompts"], rows)


def _megabytes(count: float) -> str:
    """Three digits that count."""
    if count != count or count < LEAST:
        return "-"
    return f"{count / 1e6:.{max(0, 2 - max(0, math.floor(math.log10(count / 1e6))))}f}"


def _overhead(row: dict[str, Any]) -> str:
    """In percent of vanilla's time, with its interval."""
    if row["first_token"] != row["first_token"]:
        return "-"
    interval = bounds(100 * (row["first_token_low"] - 1), 100 * (row["first_token_high"] - 1), "+.1f")
    if row["first_token"] == 1 and not interval:
        return "0 (base)"
    return f"{100 * (row['first_token'] - 1):+.1f} %{interval}"


def notes() -> Iterator[str]:
    yield (
        "memory: tensors that the method holds at the end of the run's longest text, each once; an arbitrator shares "
        "the draft's weights; own: adapters, heads and what else it keeps; peak: of the GPU's allocator, all in all"
    )
    needed = ", ".join(f"p{percent} of {least}" for percent, least in PERCENTILES.items())
    yield (
        "TTFT: time to the first token; TPOT: for each token after it; percentiles over texts, each decoded alone, "
        f"without a queue (documents needed: {needed})"
    )
    yield (
        "first token: the method's prefill against vanilla's on the same document, the median over documents with the "
        "exact interval of a median"
    )
    yield "arbitrator/round: its forwards a round; rollouts (per prompt) and prompts (per update): in its training"
