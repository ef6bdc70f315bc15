"""Paired statistics over documents, and runs of them: intervals of speedups, tests of differences in accuracy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # its submodules are loaded on first use
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 10_000
FEWEST = 3  # documents or runs of an interval; that of two would be too wide to print
LARGEST = 50.0  # of a logarithm: beyond, an interval is as good as none, and is kept finite
DRAWS = 20_000_000  # document weights drawn at once at most; with many documents there are fewer resamples


@dataclass(frozen=True)
class Interval:
    value: float
    low: float  # the 95 % interval; NaN for fewer than FEWEST documents
    high: float
    p: float = math.nan  # two-sided, for a ratio of 1; of ratios alone


@dataclass(frozen=True)
class Difference:
    """A method's accuracy against the baseline's on the same documents."""

    value: float  # method minus baseline
    p: float  # two-sided, for no difference
    test: str  # "mcnemar" or "permutation"


@dataclass(frozen=True)
class Paired:
    """Seconds and tokens of the baseline and of a method on the same documents.

    Each array is [documents], or [runs, documents] of runs that decoded them one after another.
    """

    base_seconds: Floats
    base_tokens: Floats
    seconds: Floats
    tokens: Floats
    workers: NDArray[np.int64] | None = None  # which decoded each document, if several did


def speedup(task: Paired) -> Interval | None:
    """Time per token of the baseline over that of the method, document by document in pairs.

    Of several runs the interval holds what documents and what runs vary by. None if either decoded nothing.
    """
    return average_speedup([task])


def speed_noise(task: Paired) -> tuple[float, float] | None:
    """The standard error of the speedup's logarithm times √documents, and the effective share of the documents.

    None if it is not known. Both stay about the same with more documents of the same kind.
    """
    ratio = _ratio(np.stack([task.base_seconds, task.tokens]), np.stack([task.base_tokens, task.seconds]))
    if ratio is None or math.isnan(ratio.error):
        return None
    documents = len(task.seconds)
    return ratio.error * math.sqrt(documents), min(1.0, (ratio.freedom + 1) / documents)


def average_speedup(tasks: Sequence[Paired]) -> Interval | None:
    """The mean over tasks of their speedups; None as in `speedup`."""
    return _mean(
        [_ratio(np.stack([t.base_seconds, t.tokens]), np.stack([t.base_tokens, t.seconds]), t.workers) for t in tasks]
    )


def pooled_rate(numerator: Floats, denominator: Floats) -> Interval | None:
    """Σ numerator / Σ denominator, arrays [documents] or [runs, documents]; None if either sum is 0."""
    return average_rate([(numerator, denominator)])


def average_rate(tasks: Sequence[tuple[Floats, Floats]]) -> Interval | None:
    """The mean over tasks of their pooled rates; None if one of them is not known."""
    return _mean([_ratio(numerator[None], denominator[None]) for numerator, denominator in tasks])


def mean(values: Floats) -> Interval:
    """The mean of the documents' values, and its 95 % interval by Student's t; NaN for fewer than FEWEST documents."""
    if len(values) < FEWEST:
        return Interval(float(values.mean()) if len(values) else math.nan, math.nan, math.nan)
    half = float(scipy.stats.t.ppf(0.975, len(values) - 1) * scipy.stats.sem(values))
    return Interval(float(values.mean()), float(values.mean()) - half, float(values.mean()) + half)


@dataclass(frozen=True)
class Ratio:
    """A ratio of sums over documents, and what is known of its error."""

    value: float
    error: float  # standard error of its logarithm; NaN for fewer than FEWEST documents
    freedom: float  # degrees of freedom of that error


def _ratio(over: Floats, under: Floats, workers: NDArray[np.int64] | None = None) -> Ratio | None:
    """The product of the sums of `over` by that of `under`, arrays [factors, documents]; None if a sum is 0.

    Arrays [factors, runs, documents] are of several runs (`_crossed`).

    With `workers` [documents] the error is of documents within workers, as each worker has a speed of its own: the
    stratified jackknife. A worker with a single document tells no error, and then all count as one.

    The error is the jackknife's, of the logarithm: each document is left out once. Long texts weigh more than short
    ones, so it has fewer degrees of freedom than documents: Kish's effective number (Σx)² / Σx², less one.
    """
    if over.ndim == 3:
        return _crossed(over, under)
    totals = np.concatenate([over, under])
    sums = totals.sum(1, keepdims=True)
    if not (sums > 0).all():
        return None
    signs = np.repeat([1.0, -1.0], [len(over), len(under)])
    value = float(np.prod(over.sum(1)) / np.prod(under.sum(1)))
    effective = float((sums[:, 0] ** 2 / (totals**2).sum(1)).min())
    documents = totals.shape[1]
    rest = sums - totals
    if documents < FEWEST or effective <= 1 or not (rest > 0).all():  # or one document decides all
        return Ratio(value, math.nan, 1.0)
    change = signs @ np.log(rest)
    names, sizes = np.unique(np.zeros(documents) if workers is None else workers, return_counts=True)
    strata = [change[workers == name] for name in names] if len(names) > 1 and sizes.min() > 1 else [change]
    error = math.sqrt(sum((len(stratum) - 1) * float(stratum.var()) for stratum in strata))
    return Ratio(value, error, max(1.0, effective - len(strata)))


def _crossed(over: Floats, under: Floats) -> Ratio | None:
    """`_ratio` of several runs of the same documents, arrays [factors, runs, documents]; of one run that of documents.

    The squared errors over documents and over runs are added; the degrees of freedom are Welch and Satterthwaite's.
    What varies by neither is counted twice, so the interval is rather too wide than too narrow.
    """
    by_document, by_run = (_ratio(over.sum(axis), under.sum(axis)) for axis in (1, 2))
    if by_document is None or by_run is None or over.shape[1] == 1:
        return by_document
    squares = np.array([by_document.error, by_run.error]) ** 2
    total = float(squares.sum())
    freedom = total**2 / float((squares**2 / [by_document.freedom, by_run.freedom]).sum()) if total > 0 else 1.0
    return Ratio(by_document.value, math.sqrt(total), freedom)


def _mean(ratios: Sequence[Ratio | None]) -> Interval | None:
    """The mean of ratios, with a t interval on its logarithm; the degrees of freedom are Welch and Satterthwaite's.

    None if there are none, or one of them is not known.
    """
    parts = [ratio for ratio in ratios if ratio is not None]
    if not parts or len(parts) < len(ratios):
        return None
    mean = sum(part.value for part in parts) / len(parts)
    variances = [(part.value * part.error / len(parts)) ** 2 for part in parts]
    total = sum(variances)
    if not total > 0:  # NaN: no interval; 0: all documents say the same
        return Interval(mean, mean + total, mean + total, total + math.isclose(mean, 1))
    freedom = total**2 / sum(variance**2 / part.freedom for variance, part in zip(variances, parts, strict=True))
    error = math.sqrt(total) / mean  # of the logarithm
    factor = math.exp(min(float(scipy.special.stdtrit(freedom, 0.975)) * error, LARGEST))
    p = 2 * float(scipy.special.stdtr(freedom, -abs(math.log(mean)) / error))
    return Interval(mean, mean / factor, mean * factor, p)


def resampled_rates(numerators: Floats, denominators: Floats) -> Floats:
    """The pooled rates [methods, resamples] of bootstrap samples; the arrays are [methods, documents]."""
    weights = _weights(numerators.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return (numerators @ weights.T) / (denominators @ weights.T)


@lru_cache(maxsize=4)
def _weights(documents: int) -> Floats:
    """How often each document is drawn [resamples, documents]; the same for every method: samples are paired."""
    resamples = max(1000, min(RESAMPLES, DRAWS // documents))
    rng = np.random.default_rng(0)
    return rng.multinomial(documents, np.full(documents, 1 / documents), size=resamples).astype(float)


def right_or_wrong(scores: Floats) -> bool:
    """True if all scores are 0 or 1."""
    return bool(np.isin(scores, (0, 1)).all())


def difference(mine: Floats, base: Floats) -> Difference:
    """Compare scores on the same documents, each array [documents].

    Right-or-wrong scores get McNemar's exact test, others a permutation test of the mean (signs flipped at random).
    """
    change = mine - base
    value = float(change.mean()) if len(change) else math.nan
    if right_or_wrong(mine) and right_or_wrong(base):
        return Difference(value, mcnemar(int((change > 0).sum()), int((change < 0).sum())), "mcnemar")
    if len(change) < 2 or not change.any():
        return Difference(value, 1.0, "permutation")
    rng = np.random.default_rng(0)
    largest = np.abs(change).max()
    test = scipy.stats.permutation_test(
        (change,),
        lambda x, axis: np.round(np.mean(x, axis=axis) / largest, 9),  # else thirds lose ties, which count as extreme
        permutation_type="samples",
        vectorized=True,
        n_resamples=max(999, min(RESAMPLES - 1, DRAWS // len(change) - 1)),
        batch=max(1, DRAWS // 10 // len(change)),
        rng=rng,
    )
    return Difference(value, float(test.pvalue), "permutation")


def mcnemar(better: int, worse: int) -> float:
    """The exact two-sided p of McNemar's test; `better` and `worse` count documents that only one method solved."""
    return min(1.0, 2 * float(scipy.special.bdtr(min(better, worse), better + worse, 0.5)))


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
