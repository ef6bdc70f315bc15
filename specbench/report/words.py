"""What a comparison says, in words: which differences are real, and which may be chance."""

import math

import pandas as pd

from specbench.analysis.compare import AVERAGE, SETUP
from specbench.base.stats import holm

FEWEST = 8  # documents of a task; of fewer nothing is said about speed
LEVEL = 0.05  # differences in accuracy with a smaller p are called real, after Holm's correction


def sentences(summary: pd.DataFrame) -> list[str]:
    """A line for each pair, sampling and method other than the baseline; p values are corrected for their number."""
    rows = summary[(summary.task != AVERAGE) & (summary.method != summary.baseline) & (summary.baseline != "")]
    rows = rows.assign(p=holm(rows.accuracy_p.tolist()))
    lines = []
    setups = rows[SETUP].drop_duplicates()
    for (pair, sampling, method), of_method in rows.groupby([*SETUP, "method"], sort=False):
        where = f" ({pair}, {sampling})" if len(setups) > 1 else ""
        lines.append(f"{method}{where}: {_speed(of_method)}; {_accuracy(of_method)}.")
    if len(rows.p.dropna()) > 1 and lines:
        lines.append(f"p values are Holm's, for {len(rows.p.dropna())} comparisons of accuracy.")
    return lines


def _speed(rows: pd.DataFrame) -> str:
    """The tasks on which the method is faster than its baseline, slower, or neither for sure."""
    name = "speedup_decode" if rows.speedup_decode_low.notna().any() else "speedup_e2e"
    known = rows[rows[f"{name}_low"].notna() & (rows.documents >= FEWEST)]
    if known.empty:
        return "too few documents to tell its speed" if rows[name].notna().any() else "its speed is not known"
    baseline = rows.baseline.iloc[0] + (" end to end" if name == "speedup_e2e" else "")
    faster, slower = known[known[f"{name}_low"] > 1], known[known[f"{name}_high"] < 1]
    unsure = known.drop([*faster.index, *slower.index])
    parts = [
        f"{word} {baseline} on {_tasks(tasks, known)} ({_range(tasks[name])} ×)"
        for word, tasks in (("faster than", faster), ("slower than", slower), ("not told apart in speed from", unsure))
        if len(tasks)
    ]
    return ", ".join(parts)


def _accuracy(rows: pd.DataFrame) -> str:
    """The tasks on which the method's accuracy differs from the baseline's, may differ, or is the same."""
    known = rows[rows.p.notna()]
    if known.empty:
        return "its accuracy is not compared"
    real, same = known[known.p < LEVEL], known[known.accuracy_delta == 0]
    chance = known.drop([*real.index, *same.index])
    parts = [
        f"{words} {_tasks(tasks, known)}" + (f" ({_changes(tasks)})" if changed else "")
        for words, tasks, changed in (
            ("accuracy lower on", real[real.accuracy_delta < 0], True),
            ("accuracy higher on", real[real.accuracy_delta > 0], True),
            ("a difference in accuracy that may be chance on", chance, True),
            ("the same accuracy on", same, False),
        )
        if len(tasks)
    ]
    return ", ".join(parts)


def _tasks(rows: pd.DataFrame, known: pd.DataFrame) -> str:
    """The tasks by name, or all of them by number."""
    if len(rows) == len(known) > 2:
        return f"all {len(known)} tasks"
    return " and ".join(rows.task)


def _range(values: pd.Series) -> str:
    low, high = values.min(), values.max()
    return f"{low:.2f}" if math.isclose(low, high, abs_tol=0.005) else f"{low:.2f} to {high:.2f}"


def _changes(rows: pd.DataFrame) -> str:
    """Differences in points with their p values."""
    return ", ".join(
        f"{100 * row.accuracy_delta:+.1f}".replace("-", "−") + f" points, p {_p(row.p)}" for row in rows.itertuples()
    )


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}" if p < 0.1 else f"= {p:.2f}"
