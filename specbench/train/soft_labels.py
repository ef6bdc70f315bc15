"""How well predicted probabilities fit soft labels, with intervals over documents.

A soft label is the chance that a token is accepted: a position counts that much as accepted, and the rest as rejected.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from specbench.stats import Interval

Floats = NDArray[np.floating[Any]]
Statistic = Callable[[Floats], float]  # of weights [n] of the positions
BINS = 10
RESAMPLES = 1000


def binary_kl(accepted: Floats, log_odds: Floats) -> float:
    """The mean over positions [n] of KL(p_acc ‖ σ(log odds)), in nats (SpecDec++, section D.3)."""
    p, x = accepted.astype(np.float64), log_odds.astype(np.float64)
    with np.errstate(invalid="ignore"):  # log odds that are no numbers make a KL that is none
        cross = p * np.logaddexp(0, -x) + (1 - p) * np.logaddexp(0, x)
    return float(np.mean(cross + xlogy(p, p) + xlogy(1 - p, 1 - p)))


def calibration_error(accepted: Floats, predicted: Floats) -> Statistic:
    """Expected calibration error of probabilities [n], in bins of equal width: Σ |Σ predicted − accepted| / n."""
    bins = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
    gaps = predicted - accepted

    def at(weights: Floats) -> float:
        return float(np.abs(np.bincount(bins, weights * gaps, BINS)).sum() / weights.sum())

    return at


def rejection_auroc(accepted: Floats, scores: Floats) -> Statistic:
    """The chance that a rejected token scores below an accepted one, ties by half: Σ (1 − a_i) a_j [s_i < s_j] / Σ.

    Scores [n] rise with the chance of acceptance. A position is tied with itself. NaN if all are accepted, or rejected.
    """
    _, place = np.unique(scores, return_inverse=True)

    def at(weights: Floats) -> float:
        good, bad = np.bincount(place, weights * accepted), np.bincount(place, weights * (1 - accepted))
        pairs = good.sum() * bad.sum()
        above = good.sum() - np.cumsum(good) + good / 2
        return float(bad @ above / pairs) if pairs > 0 else math.nan

    return at


def intervals(statistics: Mapping[str, Statistic], documents: NDArray[np.int64]) -> dict[str, Interval]:
    """Each statistic with a 95 % interval: documents are drawn with replacement, the same ones for all statistics.

    `documents` [n] tells which document, from 0, each position is of. NaN limits where there is one document only.
    """
    names, index = np.unique(documents, return_inverse=True)
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=RESAMPLES).astype(np.float64)
    found = {}
    for name, statistic in statistics.items():
        values = np.array([statistic(counts[index]) for counts in drawn]) if len(names) > 1 else np.array([math.nan])
        low, high = np.nanquantile(values, [0.025, 0.975]) if not np.isnan(values).all() else (math.nan, math.nan)
        found[name] = Interval(statistic(np.ones(len(documents))), float(low), float(high))
    return found
