"""Paired statistics over documents."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    value: float
    low: float  # the 95 % interval
    high: float


def speedup(
    base_seconds: Floats, base_tokens: Floats, seconds: Floats, tokens: Floats, seed: int = 0
) -> Interval | None:
    """Time per token of the baseline over that of the method, on the same documents, each array [documents].

    The 95 % interval is a paired bootstrap: documents are drawn with replacement, baseline and method together. None
    if either decoded nothing. A single document has no interval: its bounds are NaN.
    """
    totals = np.stack([base_seconds, base_tokens, seconds, tokens])  # [4, documents]
    if not (totals.sum(1) > 0).all():
        return None
    documents = totals.shape[1]
    if documents < 2:
        return Interval(float(_ratio(totals.sum(1))), math.nan, math.nan)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(documents, np.full(documents, 1 / documents), size=RESAMPLES)  # [resamples, documents]
    drawn = weights @ totals.T
    valid = (drawn > 0).all(1)
    low, high = np.quantile(_ratio(drawn[valid].T), [0.025, 0.975])
    return Interval(float(_ratio(totals.sum(1))), float(low), float(high))


def _ratio(totals: Floats) -> Floats:
    base_seconds, base_tokens, seconds, tokens = totals
    return (base_seconds / base_tokens) / (seconds / tokens)
