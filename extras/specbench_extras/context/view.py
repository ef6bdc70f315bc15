"""Acceptance and times by the place in the context; prefill, memory and decoding by the length of the prompt."""

import math
from collections.abc import Callable

import pandas as pd

from specbench.report.finding import Finding, Sheet, bounds, number
from specbench_extras.context.analysis import Context


def view(figures: Context) -> Finding:
    places, prompts = _rows(figures.places, _place), _rows(figures.prompts, _prompt)
    return Finding(
        "context",
        "BY POSITION IN THE CONTEXT",
        [
            Sheet(["before", "docs", "rounds", "τ", "α", "target", "draft", "token"], places, "rounds"),
            Sheet(["prompt", "docs", "prefill", "a token", "decode", "memory"], prompts, "texts"),
        ],
        notes=[
            "rounds: by the tokens before them, of prompt and text; α: accepted share of the tokens that were tested; "
            "[ ]: 95 %, over documents; target, draft: ms of a forward; token: ms of a round over its tokens; medians",
            "texts: by the tokens of their prompts; prefill: ms, and per prompt token; decode: ms per token after it, "
            "pooled; memory: peak in MB (on a CPU the largest size of the process so far, whatever the method)",
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
            rows.append([f"  {row['from']:.0f}{end}", f"{row['documents']:.0f}", *figures(row)])
    return rows


def _ms(seconds: float) -> str:
    return number(1000 * seconds, ".3g" if seconds < 1 else ".0f")


def _place(row: "pd.Series[float]") -> list[str]:
    alpha = number(row["alpha"], ".3f") + bounds(row["alpha_low"], row["alpha_high"], ".3f")
    return [f"{row['rounds']:.0f}", number(row["tau"]), alpha, *(_ms(row[key]) for key in ("target", "draft", "token"))]


def _prompt(row: "pd.Series[float]") -> list[str]:
    times = [_ms(row[key]) for key in ("prefill", "prefill_token", "token")]
    return [*times, number(row["memory"] / 1e6, ".0f")]
