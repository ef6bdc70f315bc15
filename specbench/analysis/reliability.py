"""Predicted probabilities against outcomes, with 95 % intervals by bootstrap over documents.

Rows hold `task`, `doc_id`, `prediction` (a probability) and `accepted` (the outcome). Documents are drawn with
replacement within each task.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy  # its submodules are loaded on first use
from numpy.typing import NDArray

from specbench.base import stats
from specbench.base.stats import Floats, Interval

BINS = 10  # of equal width, between 0 and 1
DOCUMENT = ["task", "doc_id"]
INTERVAL = ["value", "low", "high"]
STEP = 4096  # levels of a score that are processed together
PRODUCTS = 2e10  # multiplications that the intervals of an AUROC may cost: many documents need fewer resamples


@dataclass(frozen=True)
class Reliability:
    """The reliability of predictions."""

    ece: Interval  # expected calibration error
    # low, high, count, prediction (mean), accepted (share), accepted_low, accepted_high; without empty bins
    bins: pd.DataFrame


def calibration(rows: pd.DataFrame) -> Reliability:
    """Mean prediction against the share accepted in BINS bins, and the expected calibration error, Σ n |gap| / Σ n."""
    document, weights = by_document(rows)
    prediction, accepted = rows.prediction.to_numpy(), rows.accepted.to_numpy(float)
    at = np.minimum((prediction * BINS).astype(int), BINS - 1)
    count, hits, mass = (_sums(document, at, values) for values in (None, accepted, prediction))
    total = count.sum(0)
    filled = np.flatnonzero(total)
    bins = {"low": filled / BINS, "high": (filled + 1) / BINS, "count": total[filled].astype(int)}
    bins |= {"prediction": mass.sum(0)[filled] / total[filled], "accepted": hits.sum(0)[filled] / total[filled]}
    shares = np.full((2, len(filled)), math.nan)
    value = float(np.abs(mass.sum(0) - hits.sum(0)).sum() / total.sum()) if len(rows) else math.nan
    ece = Interval(value, math.nan, math.nan)
    if weights is not None:
        with np.errstate(invalid="ignore"):
            drawn = (weights @ hits[:, filled]) / (weights @ count[:, filled])
        spread = (count[:, filled] > 0).sum(0) > 1  # one document has no interval
        shares[:, spread] = np.nanquantile(drawn[:, spread], [0.025, 0.975], axis=0)
        ece = _error_interval(value, weights @ (mass - hits), (mass - hits).sum(0), (weights @ count).sum(1))
    return Reliability(ece, pd.DataFrame({**bins, "accepted_low": shares[0], "accepted_high": shares[1]}))


def _error_interval(value: float, gaps: Floats, gap: Floats, total: Floats) -> Interval:
    """The interval of a calibration error, from `gaps` of resamples [resamples, bins] and the observed `gap` [bins].

    Chance alone makes gaps, and resampling adds more of it. The interval is therefore the reflected one
    (2 · value − quantile), widened to hold the value. It starts at 0 if chance alone could make the value; the
    resamples show this once the observed gap is subtracted from theirs.
    """
    low, high = np.quantile(np.abs(gaps).sum(1) / total, [0.025, 0.975])
    chance = np.quantile(np.abs(gaps - gap).sum(1) / total, 0.975)
    least = 0.0 if value <= chance else max(0.0, 2 * value - high)
    return Interval(value, float(min(value, least)), float(max(value, 2 * value - low)))


def _sums(document: NDArray[np.int64], at: NDArray[np.int64], values: Floats | None) -> Floats:
    """Sums of `values` by document and bin [documents, BINS]; counts if `values` is None."""
    documents = int(document.max()) + 1 if len(document) else 0
    sums = np.bincount(document * BINS + at, values, documents * BINS)
    return sums.reshape(documents, BINS).astype(float)


def brier(rows: pd.DataFrame) -> Interval:
    """The mean of (prediction − accepted)²."""
    document, weights = by_document(rows)
    errors = np.bincount(document, (rows.prediction.to_numpy(float) - rows.accepted.to_numpy(float)) ** 2)
    count = np.bincount(document)
    return interval(errors.sum() / count.sum(), None if weights is None else (weights @ errors) / (weights @ count))


def discrimination(tokens: pd.DataFrame) -> dict[str, Interval]:
    """AUROC for rejection: how often a rejected token has a lower prediction than an accepted one; ties count half.

    If the draft's confidence is known for all tokens, `auroc_draft` is its AUROC on the same tokens, and
    `auroc_difference` is how much better the predictions are.
    """
    document, weights = by_document(tokens)
    lost = ~tokens.accepted.to_numpy(bool)
    values = {"auroc": tokens.prediction.to_numpy()}
    if tokens.confidence.notna().all():
        values["auroc_draft"] = tokens.confidence.to_numpy()
    kept = np.bincount(document[~lost], minlength=document.max() + 1).astype(float)
    gone = np.bincount(document[lost], minlength=document.max() + 1).astype(float)
    if weights is not None:
        weights = weights[: max(1000, int(PRODUCTS / len(kept) ** 2))]
    intervals, points, drawn = {}, [], []
    for name, score in values.items():
        pairs = wins(-score, lost, document)
        with np.errstate(divide="ignore", invalid="ignore"):
            points.append(pairs.sum() / (kept.sum() * gone.sum()))
            if weights is not None:
                drawn.append(((weights @ pairs) * weights).sum(1) / ((weights @ gone) * (weights @ kept)))
        intervals[name] = interval(points[-1], drawn[-1] if drawn else None)
    if len(points) > 1:
        intervals["auroc_difference"] = interval(points[0] - points[1], drawn[0] - drawn[1] if drawn else None)
    return intervals


def wins(score: Floats, lost: NDArray[np.bool_], document: NDArray[np.int64]) -> Floats:
    """Pairs of a rejected and an accepted token in which the rejected one has the higher score; ties count half.

    Returns [documents of the rejected token, documents of the accepted token]. `score`, `lost` (rejected) and
    `document` are [tokens].
    """
    documents = int(document.max()) + 1
    levels, level = np.unique(score[lost], return_inverse=True)
    gone = scipy.sparse.coo_array((np.ones(len(level)), (level, document[lost])), (len(levels) + 1, documents)).tocsr()
    # An accepted token is below all levels from this one on; a tie with a level counts as half below it.
    first = [np.searchsorted(levels, score[~lost], side) for side in ("left", "right")]
    half = np.full(2 * len(first[0]), 0.5)
    where = np.concatenate(first), np.tile(document[~lost], 2)
    kept = scipy.sparse.coo_array((half, where), (len(levels) + 1, documents)).tocsr()
    pairs, below = np.zeros((documents, documents)), np.zeros(documents)
    for start in range(0, len(levels), STEP):
        reached = below + kept[start : start + STEP].toarray().cumsum(0)
        pairs += gone[start : start + STEP].T @ reached
        below = reached[-1]
    return pairs


def by_document(rows: pd.DataFrame) -> tuple[NDArray[np.int64], Floats | None]:
    """The document of each row as a number, and bootstrap weights of the documents [resamples, documents].

    The weights are None if a task has a single document.
    """
    groups = rows.groupby(DOCUMENT, observed=True)
    sizes = groups.size()
    return groups.ngroup().to_numpy(), task_weights(sizes.groupby(level="task", observed=True).size().tolist())


def task_weights(documents: Sequence[int]) -> Floats | None:
    """How often each document is drawn [resamples, documents], task after task; `documents` counts those of each task.

    The draws are the same for every method, so that methods compare. None if a task has fewer than two documents.
    """
    if not documents or min(documents) < 2:
        return None
    blocks = [stats._weights(count) for count in documents]
    resamples = max(1000, min(*map(len, blocks), stats.DRAWS // sum(documents)))
    # Tasks with equally many documents have the same draws; shifted by one, those of a resample are independent.
    return np.concatenate([np.roll(block[:resamples], i, axis=0) for i, block in enumerate(blocks)], axis=1)


def interval(value: float, drawn: Floats | None) -> Interval:
    """A value with the middle 95 % of its resamples; NaN resamples are ignored."""
    if drawn is None or np.isnan(drawn).all():
        return Interval(float(value), math.nan, math.nan)
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return Interval(float(value), float(low), float(high))
