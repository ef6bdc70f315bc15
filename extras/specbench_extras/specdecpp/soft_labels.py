"""How well predicted probabilities fit soft labels, with intervals over documents.

A soft label is the chance that a token is accepted: by that share a position counts as accepted, by the rest as
rejected.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from specbench.base.stats import Interval

Floats = NDArray[np.floating[Any]]
Statistic = Callable[[Floats], float]  # of weights [n] of the positions
BINS = 10
RESAMPLES = 1000


def binary_kl(accepted: Floats, log_odds: Floats) -> float:
    """The mean over positions [n] of KL(p_acc ‖ σ(log odds)), in nats (SpecDec++, section D.3)."""
    p, x = accepted.astype(np.float64), log_odds.astype(np.float64)
    with np.errstate(invalid="ignore"):  # log odds that are NaN give a KL that is NaN
        cross = p * np.logaddexp(0, -x) + (1 - p) * np.logaddexp(0, x)
    return float(np.mean(cross + xlogy(p, p) + xlogy(1 - p, 1 - p)))


def calibration_error(accepted: Floats, predicted: Floats) -> Statistic:
    """Expected calibration error of probabilities [n], in bins of equal width: Σ |Σ predicted − accepted| / n."""
    bins = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
    gaps = predicted - accepted

    def value(weights: Floats) -> float:
        return float(np.abs(np.bincount(bins, weights * gaps, BINS)).sum() / weights.sum())

    return value


def rejection_auroc(accepted: Floats, scores: Floats) -> Statistic:
    """The chance that a rejected token scores below an accepted one, ties counting half.

    That is Σ (1 − a_i) a_j [s_i < s_j] / Σ (1 − a_i) a_j. Scores [n] rise with the chance of acceptance. A position is
    tied with itself. NaN if all are accepted, or all rejected.
    """
    _, place = np.unique(scores, return_inverse=True)

    def value(weights: Floats) -> float:
        kept, rejected = np.bincount(place, weights * accepted), np.bincount(place, weights * (1 - accepted))
        pairs = kept.sum() * rejected.sum()
        above = kept.sum() - np.cumsum(kept) + kept / 2
        return float(rejected @ above / pairs) if pairs > 0 else math.nan

    return value


def intervals(statistics: Mapping[str, Statistic], documents: NDArray[np.int64]) -> dict[str, Interval]:
    """Each statistic with a 95 % interval: documents are drawn with replacement, the same ones for all statistics.

    `documents` [n] holds the document of each position, from 0. With a single document the limits are NaN.
    """
    names, index = np.unique(documents, return_inverse=True)
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=RESAMPLES).astype(np.float64)
    result = {}
    for name, statistic in statistics.items():
        values = np.array([statistic(counts[index]) for counts in drawn]) if len(names) > 1 else np.array([math.nan])
        low, high = np.nanquantile(values, [0.025, 0.975]) if not np.isnan(values).all() else (math.nan, math.nan)
        result[name] = Interval(statistic(np.ones(len(documents))), float(low), float(high))
    return result
