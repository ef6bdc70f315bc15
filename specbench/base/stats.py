"""Paired statistics over documents: intervals of speedups, tests of differences in accuracy, agreement of orders."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # its submodules are loaded on first use
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 10_000
DRAWS = 20_000_000  # document weights drawn at once at most; with many documents there are fewer resamples


@dataclass(frozen=True)
class Interval:
    value: float
    low: float  # the 95 % interval; NaN for a single document
    high: float


@dataclass(frozen=True)
class Difference:
    """A method's accuracy against the baseline's on the same documents."""

    value: float  # method minus baseline
    p: float  # two-sided, for no difference
    test: str  # "mcnemar" or "permutation"


@dataclass(frozen=True)
class Paired:
    """Seconds and tokens of the baseline and of a method on the same documents, each array [documents]."""

    base_seconds: Floats
    base_tokens: Floats
    seconds: Floats
    tokens: Floats


def speedup(task: Paired) -> Interval | None:
    """Time per token of the baseline over that of the method, with a paired bootstrap over documents.

    Documents are drawn with replacement, baseline and method together. None if either decoded nothing.
    """
    return average_speedup([task])


def average_speedup(tasks: Sequence[Paired]) -> Interval | None:
    """The mean over tasks of their speedups; documents are drawn within each task. None as in `speedup`."""
    values, draws = [], []
    for task in tasks:
        totals = np.stack([task.base_seconds, task.base_tokens, task.seconds, task.tokens])  # [4, documents]
        if not (totals.sum(1) > 0).all():
            return None
        values.append(_ratio(totals.sum(1)))
        draws.append(_resampled(totals) if totals.shape[1] > 1 else np.full(1, math.nan))
    if not values:
        return None
    shortest = min(map(len, draws))
    drawn = np.mean([draw[:shortest] for draw in draws], axis=0)
    low, high = np.nanquantile(drawn, [0.025, 0.975]) if not np.isnan(drawn).all() else (math.nan, math.nan)
    return Interval(float(np.mean(values)), float(low), float(high))


def rate_ratio(mine: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> Interval | None:
    """The ratio of two methods' pooled rates; a rate is a numerator and a denominator, arrays [documents]."""
    (numerator, denominator), (other_numerator, other_denominator) = mine, other
    return speedup(Paired(numerator, denominator, other_numerator, other_denominator))


def resampled_rates(numerators: Floats, denominators: Floats) -> Floats:
    """The pooled rates [methods, resamples] of bootstrap samples; the arrays are [methods, documents]."""
    weights = _weights(numerators.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return (numerators @ weights.T) / (denominators @ weights.T)


def kendall(published: Floats, ours: Floats) -> Floats:
    """Kendall's τ between one order [methods] and each of many [methods, orders]; ties count for neither side."""
    first, second = np.triu_indices(len(published), 1)
    agree = np.sign(published[first] - published[second])[:, None] * np.sign(ours[first] - ours[second])
    return agree.mean(0)


def _resampled(totals: Floats) -> Floats:
    """Speedups of bootstrap samples [resamples]; NaN for samples that decoded nothing."""
    drawn = (_weights(totals.shape[1]) @ totals.T).T  # [4, resamples]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((drawn > 0).all(0), _ratio(drawn), math.nan)


@lru_cache(maxsize=4)
def _weights(documents: int) -> Floats:
    """How often each document is drawn [resamples, documents]; the same for every method: samples are paired."""
    resamples = max(1000, min(RESAMPLES, DRAWS // documents))
    rng = np.random.default_rng(0)
    return rng.multinomial(documents, np.full(documents, 1 / documents), size=resamples).astype(float)


def _ratio(totals: Floats) -> Floats:
    base_seconds, base_tokens, seconds, tokens = totals
    return (base_seconds / base_tokens) / (seconds / tokens)


def difference(mine: Floats, base: Floats) -> Difference:
    """Compare scores on the same documents, each array [documents].

    Right-or-wrong scores get McNemar's exact test, others a permutation test of the mean (signs flipped at random).
    """
    change = mine - base
    value = float(change.mean()) if len(change) else math.nan
    if np.isin(mine, (0, 1)).all() and np.isin(base, (0, 1)).all():
        return Difference(value, mcnemar(int((change > 0).sum()), int((change < 0).sum())), "mcnemar")
    if len(change) < 2 or not change.any():
        return Difference(value, 1.0, "permutation")
    rng = np.random.default_rng(0)
    test = scipy.stats.permutation_test(
        (change,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=max(999, min(RESAMPLES - 1, DRAWS // len(change) - 1)),
        batch=max(1, DRAWS // 10 // len(change)),
        rng=rng,
    )
    return Difference(value, float(test.pvalue), "permutation")


def mcnemar(better: int, worse: int) -> float:
    """The exact two-sided p of McNemar's test; `better` and `worse` count documents that only one method solved."""
    return float(scipy.stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0


def holm(ps: Sequence[float]) -> list[float]:
    """P values adjusted by Holm's step-down rule, in the order of `ps`; NaN stays NaN and does not count."""
    adjusted = [math.nan] * len(ps)
    order = sorted((p, i) for i, p in enumerate(ps) if not math.isnan(p))
    reached = 0.0
    for rank, (p, i) in enumerate(order):
        reached = max(reached, min(1.0, p * (len(order) - rank)))
        adjusted[i] = reached
    return adjusted


@dataclass(frozen=True)
class ChiSquare:
    """The result of a χ² test on draws whose distributions may differ."""

    draws: int
    statistic: float
    df: int
    p: float
    detectable: float  # the shift of probability that a test at `level` finds with a power of 0.8


def chi_square(drawn: NDArray[np.int64], expected: Floats, toward: Floats, level: float) -> ChiSquare:
    """Test drawn classes against the class probabilities of each draw.

    The exact covariance of the counts, the sum over draws of diag(e) - e eᵀ, replaces Pearson's denominators; if all
    rows are equal, the statistic is Pearson's.

    Args:
        drawn: the class of each draw [draws].
        expected: class probabilities [draws, classes].
        toward: 1 for classes that a bias would favour, else 0 [classes]; `detectable` is a shift towards them.
        level: the significance level for `detectable`.
    """
    draws, classes = expected.shape
    excess = np.bincount(drawn, minlength=classes) - expected.sum(0)
    covariance = np.diag(expected.sum(0)) - expected.T @ expected
    inverse = np.linalg.pinv(covariance, rcond=1e-9, hermitian=True)
    df = int(np.linalg.matrix_rank(covariance, tol=1e-9 * max(covariance.trace(), 1e-30), hermitian=True))
    statistic = float(excess @ inverse @ excess)
    if df == 0:
        return ChiSquare(draws, statistic, 0, 1.0, math.nan)
    mass = expected.sum(0)
    gain, loss = mass * toward, mass * (1 - toward)
    detectable = math.nan
    if gain.sum() > 0 and loss.sum() > 0:
        shift = draws * (gain / gain.sum() - loss / loss.sum())
        wanted = _noncentrality(df, level)
        detectable = math.sqrt(wanted / float(shift @ inverse @ shift))
    return ChiSquare(draws, statistic, df, float(scipy.stats.chi2.sf(statistic, df)), detectable)


def _noncentrality(df: int, level: float, power: float = 0.8) -> float:
    """The noncentrality at which a χ² test has this power."""
    critical = scipy.stats.chi2.isf(level, df)
    return float(scipy.optimize.brentq(lambda n: scipy.stats.ncx2.sf(critical, df, n) - power, 1e-6, 1e4))
