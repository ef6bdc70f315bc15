"""Acceptance and times by the place in the context; prefill, memory and decoding by the length of the prompt."""

import math
from collections.abc import Callable

import pandas as pd

from specbench.analysis.context import Context
from specbench.report.finding import Finding, Sheet, bounds, number


def view(figures: Context) -> Finding:
    places, prompts = _rows(figures.places, _place), _rows(figures.prompts, _prompt)
    return Finding(
        "context",
        "BY POSITION IN THE CONTEXT",
        [
            Sheet(["before", "docs", "rounds", "τ", "α"], places, "rounds"),
            Sheet(["before", "tok/s", "speedup", "target", "draft", "token"], _rows(figures.places, _speed), "speed"),
            Sheet(["prompt", "docs", "prefill", "a token", "decode", "memory"], prompts, "texts"),
        ],
        notes=[
            "rounds: by the tokens before them, of prompt and text; α: accepted share of the tokens that were tested; "
            "[ ]: 95 %, over documents; the turns of a conversation are one",
            "speed: tok/s of these rounds; speedup: over the baseline's rounds there; target, draft: ms of a forward; "
            "token: ms of a round over its tokens; medians",
            "texts: by the tokens of their prompts; prefill: ms, and per token that was not cached; decode: ms per "
            "token after it, pooled; memory: peak in MB (on a CPU the largest size of the process so far, whatever the "
            "method)",
        ],
        facts={"places": figures.places, "prompts": figures.prompts},
    )


def _rows(table: pd.DataFrame, figures: Callable[["pd.Series[float]"], list[str]]) -> list[list[str]]:
    """A row of cells for each span of tokens, below the name of its method."""
    rows: list[list[str]] = []
    for method, part in table.groupby("method", sort=False):
        rows.append([str(method)])
        for _, row in part.iterrows():
            end = f" to {row['to'] - 1:.0f}" if math.isfinite(row["to"]) else " on"
            rows.append([f"  {row['from']:.0f}{end}", *figures(row)])
    return rows


def _ms(seconds: float) -> str:
    return number(1000 * seconds, ".3g" if seconds < 1 else ".0f")


def _place(row: "pd.Series[float]") -> list[str]:
    counts = f"{row['documents']:.0f}", f"{row['rounds']:.0f}"
    return [*counts, _interval(row, "tau", ".2f"), _interval(row, "alpha", ".3f")]


def _speed(row: "pd.Series[float]") -> list[str]:
    times = [_ms(row[key]) for key in ("target", "draft", "token")]
    return [_interval(row, "speed", ".3g"), _interval(row, "speedup", ".2f"), *times]


def _interval(row: "pd.Series[float]", name: str, digits: str) -> str:
    return number(row[name], digits) + bounds(row[f"{name}_low"], row[f"{name}_high"], digits)


def _prompt(row: "pd.Series[float]") -> list[str]:
    times = [_ms(row[key]) for key in ("prefill", "prefill_token", "token")]
    return [f"{row['documents']:.0f}", *times, number(row["memory"] / 1e6, ".0f")]
