"""Drafts on recorded texts: the figures of each task and of all, then of each level."""

import math
from collections.abc import Iterator

import pandas as pd

from specbench.report.finding import Finding, Sheet, bounds, number
from specbench_extras.replay.study import ALL, Replayed, by_context, by_depth, by_task


def view(figures: Replayed) -> Finding:
    tasks, depths, contexts = by_task(figures), by_depth(figures), by_context(figures)
    return Finding(
        "replay",
        f"{figures.method} on {figures.texts} recorded texts",
        [
            _tasks(tasks),
            *([_contexts(contexts)] if len(contexts) > 1 else []),
            *([_depths(depths[depths.task == ALL])] if len(depths) else []),
        ],
        notes=[*notes(figures)],
        facts={
            "method": figures.method,
            "texts": figures.texts,
            "by_task": tasks,
            "by_context": contexts,
            "by_depth": depths,
        },
    )


def notes(figures: Replayed) -> Iterator[str]:
    yield "position: after a generated token; found: share of positions with a draft"
    yield "drafted: tokens a position; accepted: levels that the text follows"
    yield "τ: tokens a round, of the rounds of greedy decoding; µs: host time per draft"
    yield "[ ]: 95 %, over documents; the turns of a conversation are one"
    yield "reached: the draft has this level, and the text follows all levels above it"
    without = figures.texts - figures.positions.text.nunique()
    if without:
        yield f"texts of fewer than two generated tokens, which have no position: {without}"


def _tasks(tasks: pd.DataFrame) -> Sheet:
    rows = []
    for row in (tasks.iloc[-1:] if len(tasks) == 2 else tasks).itertuples():
        counts = str(row.texts), str(row.positions)
        means = f"{row.drafted:.2f}", f"{row.accepted:.2f}", str(row.rounds), f"{row.tau:.2f}"
        rows.append([row.task, *counts, f"{row.found:.1%}", *means, f"{row.microseconds:.0f}"])
    return Sheet(["task", "texts", "positions", "found", "drafted", "accepted", "rounds", "τ", "µs"], rows)


def _contexts(contexts: pd.DataFrame) -> Sheet:
    rows = []
    for row in contexts.itertuples():
        span = f"{row[1]} to {row.to - 1:.0f}" if math.isfinite(row.to) else f"{row[1]} on"
        tau = f"{row.tau:.2f}" + bounds(row.tau_low, row.tau_high)
        rows.append([span, str(row.documents), str(row.positions), f"{row.found:.1%}", str(row.rounds), tau])
    return Sheet(["before", "docs", "positions", "found", "rounds", "τ"], rows, "by the tokens before, all tasks")


def _depths(depths: pd.DataFrame) -> Sheet:
    rows = []
    for row in depths.itertuples():
        counts = str(row.depth), str(row.drafted), str(row.tested), str(row.accepted)
        rows.append([*counts, number(row.acceptance, ".1%"), f"{row.joint:.1%}"])
    headings = ["depth", "drafted", "reached", "accepted", "of reached", "of all"]
    return Sheet(headings, rows, "by depth, all tasks", align="r" * len(headings))
