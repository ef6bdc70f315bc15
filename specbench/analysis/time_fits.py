"""Does a count of forwards predict the time of decoding? Least-squares times of a forward, and how far off they are.

The analysis of SpecDec++ (arXiv 2405.19715, §3.2, §5.2, D.2): T = t_draft · N_draft + t_target · N_target, fitted to
documents, and the throughput that follows from discard and verification rates (Eq. 5.1). Prefill is left out of times
and counts.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis import metrics
from specbench.analysis.simulated_rows import ALL
from specbench.base.stats import Floats
from specbench.results.stored import StoredRun

ALONE = "stand-alone"
AVERAGE = "average"


def document_counts(run: StoredRun) -> pd.DataFrame:
    """The counts of every document, and its decode seconds: the median over repeats with the same counts."""
    counts = metrics.per_document(run.samples(metrics.TIMED), run.rounds()).reset_index()
    counts = counts[(counts.C > 0) & counts.decode.notna()]
    same = ["task", "method", "doc_id", "D", "A", "C", "F", "G"]
    return counts.groupby(same, sort=False).decode.median().reset_index()


def regression(forwards: Floats, seconds: Floats) -> tuple[list[float], float, float]:
    """Seconds per forward of each kind [k], by least squares without an intercept; then R² about the mean and about 0.

    `forwards` [n, k] are the counts of n documents whose decoding took `seconds` [n]. All is NaN if the counts do not
    determine the times.
    """
    kinds = forwards.shape[1]
    scale = np.abs(forwards).max(0)
    if len(forwards) <= kinds or not scale.all() or np.linalg.cond(forwards / scale) > 1e6:
        return [math.nan] * kinds, math.nan, math.nan
    times, *_ = np.linalg.lstsq(forwards, seconds, rcond=None)
    spread = ((seconds - seconds.mean()) ** 2).sum()
    left = ((seconds - forwards @ times) ** 2).sum()
    about_zero = float(1 - left / (seconds**2).sum())
    return times.tolist(), float(1 - left / spread) if spread else math.nan, about_zero


def fit_alone(plain: pd.DataFrame, draft: pd.DataFrame | None) -> Iterator[dict[str, Any]]:
    """Times fitted to the target alone and to the draft alone, a row for each task."""
    for task, rows in metrics.by_task(plain, plain.task.unique(), ALL):
        (t_target,), r2_target, zero_target = regression(rows[["F"]].to_numpy(), rows.decode.to_numpy())
        row = {"method": ALONE, "task": task, "t_target": t_target, "r2_target": r2_target, "documents": len(rows)}
        row["r2_about_zero"] = zero_target
        if draft is not None:
            draft_rows = draft if task == ALL else draft[draft.task == task]
            (t_draft,), r2_draft, zero_draft = regression(draft_rows[["F"]].to_numpy(), draft_rows.decode.to_numpy())
            row |= {"t_draft": t_draft, "r2_draft": r2_draft, "r2_about_zero": min(zero_target, zero_draft)}
        yield row


def fit_together(drafting: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Both times fitted to runs with drafts, a row for each method and task."""
    for label, mine in drafting.groupby("label", sort=False):
        for task, rows in metrics.by_task(mine, mine.task.unique(), ALL):
            (t_draft, t_target), r2, zero = regression(rows[["G", "F"]].to_numpy(), rows.decode.to_numpy())
            fit = {"t_draft": t_draft, "t_target": t_target, "r2": r2, "r2_about_zero": zero}
            yield {"method": label, "task": task, **fit, "documents": len(rows)}


def with_averages(fits: pd.DataFrame) -> pd.DataFrame:
    """The fits, each method's followed by the means and population deviations of its times over the tasks."""
    parts = []
    for method, rows in fits.groupby("method", sort=False):
        parts.append(rows)
        rows = rows[rows.task != ALL]  # the average counts each task once
        if len(rows) > 1:
            average: dict[str, Any] = {"method": method, "task": AVERAGE}
            for name in {"t_draft", "t_target"} & set(rows.columns):
                average |= {name: rows[name].mean(skipna=False), f"{name}_sd": rows[name].std(ddof=0, skipna=False)}
            parts.append(pd.DataFrame([average]))
    wanted = ["method", "task", "t_draft", "t_target", "r2", "r2_draft", "r2_target", "t_draft_sd", "t_target_sd"]
    return pd.concat(parts, ignore_index=True).reindex(columns=[*wanted, "r2_about_zero", "documents"])


def throughput_errors(drafting: pd.DataFrame, fits: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Relative errors of Eq. 5.1 with the fitted times: t_draft (1 + discard) + (t_target - t_draft) verification."""
    merged = drafting.merge(fits.drop(columns="documents"), left_on=["label", "task"], right_on=["method", "task"])
    discard, verification = (merged.D - merged.A) / merged.C, merged.F / merged.C
    per_token = merged.t_draft * (1 + discard) + (merged.t_target - merged.t_draft) * verification
    merged = merged.assign(error=(merged.decode / merged.C / per_token - 1).abs())
    for (label, task), rows in merged.groupby(["label", "task"], sort=False):
        errors = rows.error.dropna()
        median, p90 = errors.quantile([0.5, 0.9]) if len(errors) else (math.nan, math.nan)
        yield {"method": label, "task": task, "documents": len(rows), "median": median, "p90": p90}
