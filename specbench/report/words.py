"""What a comparison says, in words: which differences are real, and which may be chance."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

from specbench.analysis.compare import AVERAGE
from specbench.analysis.pooled import SETUP
from specbench.base.stats import holm
from specbench.report.columns import p_text

FEWEST = 8  # documents of a task; of fewer nothing is said about speed
LEVEL = 0.05  # differences with a smaller p are called real, after Holm's correction
MANY_CUT = 0.1  # the share of answers cut by the limit of new tokens from which a verdict says so
HIDDEN = 0.1  # a score is called the same only if a difference of 10 points would have shown
OF_METHOD = [*SETUP, "method"]
# Verdicts of a row; "" where nothing was compared.
FASTER, SLOWER, UNCLEAR = "faster", "slower", "no clear difference"
HIGHER, LOWER, CHANCE, SAME = "higher", "lower", "may be chance", "same"
TOO_FEW, NO_VERDICT = "too few documents", "no verdict"


def sentences(summary: pd.DataFrame, withheld: Mapping[Any, str] = MappingProxyType({})) -> list[str]:
    """A line for each pair, sampling and method other than the baseline; p values are corrected for their number.

    `withheld` says by the labels of rows why no verdict is given of their speed.
    """
    rows = judged(summary, withheld)
    if rows.empty:
        return []
    lines = []
    setups = rows[SETUP].drop_duplicates()
    for (pair, sampling, method), of_method in rows.groupby(OF_METHOD, sort=False):
        where = f" ({pair}, {sampling})" if len(setups) > 1 else ""
        lines.append(f"{method}{where}: {_speed(of_method)}; {_accuracy(of_method)}.")
    speeds, scores = rows.speed_p.count(), rows.p.count()
    if max(speeds, scores) > 1:
        compared = [f"{count} of {what}" for count, what in ((speeds, "speed"), (scores, "accuracy")) if count]
        lines.append(f"Verdicts and p values have Holm's correction for these comparisons: {' and '.join(compared)}.")
    return lines + _cut(summary[summary.task != AVERAGE])


def judged(summary: pd.DataFrame, withheld: Mapping[Any, str] = MappingProxyType({})) -> pd.DataFrame:
    """The rows of methods other than their baseline, without averages, each with `speed_verdict` and `score_verdict`.

    Also `speed`, while decoding or (`end_to_end`) with the prefill, and `speed_p` and `p` of speed and score with
    Holm's correction for all rows. `withheld` says by the labels of rows why no verdict is given of their speed.
    """
    rows = summary[(summary.task != AVERAGE) & (summary.method != summary.baseline) & (summary.baseline != "")]
    rows = rows.assign(withheld=[withheld.get(label, "") for label in rows.index])
    rows = _with_speeds(rows).assign(p=holm(rows.accuracy_p.tolist()))
    return rows.assign(
        speed_verdict=[_speed_verdict(row) for row in rows.itertuples()],
        score_verdict=[_score_verdict(row) for row in rows.itertuples()],
    )


def _speed_verdict(row: Any) -> str:
    if math.isnan(row.speed):
        return ""
    if row.withheld or row.imported:
        return NO_VERDICT
    if math.isnan(row.speed_p):
        return TOO_FEW
    return UNCLEAR if row.speed_p >= LEVEL else FASTER if row.speed > 1 else SLOWER


def _score_verdict(row: Any) -> str:
    if math.isnan(row.p):
        return ""
    if row.accuracy_delta == 0:
        return SAME if row.accuracy_delta_low >= -HIDDEN and row.accuracy_delta_high <= HIDDEN else TOO_FEW
    return CHANCE if row.p >= LEVEL else HIGHER if row.accuracy_delta > 0 else LOWER


def _cut(rows: pd.DataFrame) -> list[str]:
    """A line if many answers end at the limit of new tokens: their scores and speeds are those of unfinished texts."""
    tasks = rows.groupby("task", sort=False).cut.max()
    tasks = tasks[tasks >= MANY_CUT]
    if tasks.empty:
        return []
    named = ", ".join(f"{share:.0%} of them on {task}" for task, share in tasks.items())
    return [f"Answers are cut by the limit of new tokens, up to {named}: raise --max-new-tokens, or read scores so."]


def _with_speeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Each method's `speed`, while decoding or, where that is not known, `end_to_end`, and its corrected `speed_p`.

    There is no p of too few documents, nor of figures that other tools took one method after the other.
    """
    decode = rows.speedup_decode_low.notna().groupby([rows[name] for name in OF_METHOD]).transform("any")
    p = rows.speedup_decode_p.where(decode, rows.speedup_e2e_p)
    p = p.where((rows.compared >= FEWEST) & ~rows.imported & (rows.withheld == ""))
    speed = rows.speedup_decode.where(decode, rows.speedup_e2e)
    return rows.assign(end_to_end=~decode, speed=speed, speed_p=holm(p.tolist()))


def _speed(rows: pd.DataFrame) -> str:
    """The tasks on which the method is faster than its baseline, slower, or neither for sure, or has no verdict."""
    known, withheld = rows[rows.speed_p.notna()], rows[rows.withheld != ""]
    end_to_end = " end to end" * bool(rows.end_to_end.iloc[0])
    baseline = f"{rows.baseline.iloc[0]}{end_to_end}"
    if rows.speed.isna().all():
        return "its speed is not known"
    if rows.imported.any():
        return (
            f"{_range(rows.speed.dropna())} times the speed of {baseline}, if the machine was the same and as idle for "
            "both; their files cannot tell, so neither is called faster"
        )
    if known.empty and withheld.empty:
        return "too few documents to tell its speed"
    parts = [
        f"{words} {baseline} on {_tasks(tasks, known)} ({_range(tasks.speed)} ×)"
        for verdict, words in (
            (FASTER, "faster than"),
            (SLOWER, "slower than"),
            (UNCLEAR, "no clear difference in speed from"),
        )
        if len(tasks := known[known.speed_verdict == verdict])
    ]
    parts += [
        f"no verdict on its speed on {_tasks(held, rows)} ({why})"
        for why, held in withheld.groupby("withheld", sort=False)
    ]
    return ", ".join(parts)


def _accuracy(rows: pd.DataFrame) -> str:
    """The tasks on which the method's score differs from the baseline's, may differ, is the same, or is not known."""
    known = rows[rows.p.notna()]
    word = "score" if (known.accuracy_test == "permutation").any() else "accuracy"
    if known.empty:
        return f"its {word} is not compared"
    parts = [
        f"{words} {_tasks(tasks, known)}" + (f" ({_changes(tasks)})" if verdict in (LOWER, HIGHER, CHANCE) else "")
        for verdict, words in (
            (LOWER, f"{word} lower on"),
            (HIGHER, f"{word} higher on"),
            (CHANCE, f"a difference in {word} that may be chance on"),
            (SAME, f"the same {word} on"),
            (TOO_FEW, f"too few to tell its {word} on"),
        )
        if len(tasks := known[known.score_verdict == verdict])
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
    text = p_text(p) if p < 0.1 else f"{p:.2f}"
    return text if text.startswith("<") else f"= {text}"
