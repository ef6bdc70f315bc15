"""`specbench plan`: how many documents tell a difference of a given size, from the noise of a stored run."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specbench.analysis import compare, pooled
from specbench.base import scores, stats

ROLES = ("method", "baseline")


@dataclass(frozen=True)
class Needed:
    """The table has a row for each task and method with a baseline.

    Columns: pair, sampling, task, method, baseline; documents of the run; noise (standard error of the logarithm of the
    speedup, times √documents), for_speed; discordant (share of documents that only one of both solves, NaN for other
    scores), assumed (true if the user gave it), for_score. A number of documents is NaN where nothing is known.
    """

    speedup: float  # to be told from 1
    points: float  # of accuracy, in percent
    table: pd.DataFrame


def needed(runs: pooled.Measured, speedup: float, points: float, discordant: float | None = None) -> Needed:
    """Documents for 80 % power at the 5 % level; `discordant` replaces the share that the run has."""
    rows = []
    for row in compare.summary(runs).to_dict("records"):
        if row["task"] == compare.AVERAGE or row["method"] == row["baseline"] or not row["baseline"]:
            continue
        at = {name: row[name] for name in (*pooled.ROW, "baseline", "documents")}
        speed = _for_speed(runs, at, speedup)
        rows.append(at | speed | _for_score(runs, at, points / 100, discordant))
    return Needed(speedup, points, pd.DataFrame(rows))


def _for_speed(runs: pooled.Measured, at: dict[str, object], speedup: float) -> dict[str, float]:
    """From decode times; where a run has none, from whole times."""
    mine, base = (runs.by_row.get(_key(at, at[role])) for role in ROLES)
    for whole in (False, True):
        times = None if mine is None or base is None else compare.paired(mine, base, whole)
        if times and (noise := stats.speed_noise(times)):
            return {"noise": noise[0], "for_speed": scores.documents_for_speed(noise[0], speedup, noise[1])}
    return {"noise": math.nan, "for_speed": math.nan}


def _for_score(
    runs: pooled.Measured, at: dict[str, object], size: float, discordant: float | None
) -> dict[str, float | bool]:
    parts = [runs.scores[(runs.scores[pooled.ROW] == list(_key(at, at[role]))).all(axis=1)] for role in ROLES]
    mine, base = (part[part.doc_id.notna()].groupby("doc_id").value.mean() for part in parts)
    both = pd.concat([mine, base], axis=1, join="inner").to_numpy(float).T
    graded = not stats.right_or_wrong(both)
    if discordant is None and (both.size == 0 or graded):
        change = both[0] - both[1] if both.size else np.zeros(0)
        spread = float(change.std(ddof=1)) if len(change) >= stats.FEWEST else math.nan
        count = scores.documents_for_mean(size, spread) if spread > 0 else math.nan
        return {"discordant": math.nan, "assumed": False, "for_score": count}
    share = float((both[0] != both[1]).mean()) if discordant is None else discordant
    return {
        "discordant": share,
        "assumed": discordant is not None,
        "for_score": scores.documents_for_score(size, share),
    }


def _key(at: dict[str, object], method: object) -> tuple[str, ...]:
    return tuple(str(part) for part in (*(at[name] for name in pooled.ROW[:3]), method))
