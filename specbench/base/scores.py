"""Intervals of mean scores and of their differences, and how many documents a comparison needs."""

import math
from collections.abc import Sequence

import numpy as np
import scipy  # its submodules are loaded on first use

from specbench.base.stats import FEWEST, Floats, Interval, pooled_rate, right_or_wrong

Z = 1.959964  # 95 % of a normal distribution lie within ± this many standard deviations
Z_POWER = 0.841621  # 80 % lie below


def wilson(value: float, documents: int) -> Interval:
    """Wilson's interval of a share of documents; it does not shrink to a point if all are right, or all wrong."""
    if not documents:
        return Interval(math.nan, math.nan, math.nan)
    spread = Z * math.sqrt(value * (1 - value) / documents + (Z / documents) ** 2 / 4)
    weight = 1 + Z**2 / documents
    middle = value + Z**2 / documents / 2
    low, high = (middle - spread) / weight, (middle + spread) / weight
    return Interval(value, max(0.0, min(value, low)), min(1.0, max(value, high)))  # rounding may pass by the value


def mean_score(values: Floats) -> Interval:
    """The mean of scores [documents] with its 95 % interval; NaN bounds where there is none.

    Right-or-wrong scores get Wilson's. Other scores from 0 to 1 crowd at one end, so the interval is that of a ratio
    (`stats.pooled_rate`) for the distance to the nearer end. Scores beyond get a t interval.
    """
    count = len(values)
    value = float(values.mean()) if count else math.nan
    if not count or right_or_wrong(values):
        return wilson(value, count)
    if values.min() < 0 or values.max() > 1:
        return _t_interval(values)
    distance = pooled_rate(1 - values if value > 0.5 else values, np.ones(count))
    if distance is None or math.isnan(distance.low):  # too few to know their spread: it is at most that of 0 and 1
        return wilson(value, count)
    low, high = distance.low, min(1.0, distance.high)
    return Interval(value, *((1 - high, 1 - low) if value > 0.5 else (low, high)))


def _t_interval(values: Floats) -> Interval:
    count, value = len(values), float(values.mean())
    if count < FEWEST:
        return Interval(value, math.nan, math.nan)
    reach = float(scipy.special.stdtrit(count - 1, 0.975)) * float(values.std(ddof=1)) / math.sqrt(count)
    return Interval(value, value - reach, value + reach)


def average_score(tasks: Sequence[Interval], weights: Sequence[float] | None = None) -> Interval:
    """The mean of several tasks' scores: how far each may lie below or above its value adds up as variances do.

    `weights`, such as numbers of documents, are equal by default.
    """
    shares = np.array(weights or [1.0] * len(tasks)) / sum(weights or [len(tasks)])
    values, lows, highs = (np.array([getattr(task, end) for task in tasks]) for end in ("value", "low", "high"))
    value = float(shares @ values)
    below, above = (float(np.linalg.norm(shares * reach)) for reach in (values - lows, highs - values))
    return Interval(value, value - below, value + above)


def change_interval(change: Floats) -> Interval:
    """The mean difference of scores on the same documents [documents], with a 95 % interval.

    Two more documents are counted, one in which the score changed by 1 and one by -1: for right-or-wrong scores this
    is Bonett and Price's interval, and does not shrink to a point if no document differs. Scores that change by more
    than 1 get a t interval.
    """
    count = len(change)
    if not count:
        return Interval(math.nan, math.nan, math.nan)
    if np.abs(change).max() > 1:
        return _t_interval(change)
    middle = float(change.sum()) / (count + 2)
    variance = (float((change**2).sum()) + 2) / (count + 2) - middle**2
    reach = Z * math.sqrt(max(0.0, variance) / (count + 2))
    return Interval(float(change.mean()), max(-1.0, middle - reach), min(1.0, middle + reach))


def documents_for_speed(noise: float, speedup: float, evenness: float = 1.0) -> float:
    """How many documents tell a speedup from 1 in 80 of 100 runs, at the 5 % level; infinite for a speedup of 1.

    n is the smallest number with (t₀.₉₇₅ + t₀.₈) · noise / √n ≤ |log speedup|, with `evenness` · n - 1 degrees of
    freedom.

    Args:
        noise: standard error of the logarithm of a measured speedup, times the root of its number of documents.
        evenness: the effective number of documents over their number: 1 if all are of one length.
    """
    size = abs(math.log(speedup))
    if not size:
        return math.inf
    count = math.ceil((Z + Z_POWER) ** 2 * (noise / size) ** 2)
    while True:
        count = max(count, FEWEST)
        freedom = max(1.0, evenness * count - 1)
        factor = float(scipy.special.stdtrit(freedom, 0.975) + scipy.special.stdtrit(freedom, 0.8))
        if factor * noise <= size * math.sqrt(count):
            return count
        count += max(1, count // 100)


def documents_for_score(size: float, discordant: float) -> float:
    """How many documents tell a difference of right-or-wrong scores in 80 of 100 runs, at the 5 % level.

    n = (z₀.₉₇₅ √d + z₀.₈ √(d - size²))² / size² + 2 / size, with d the share of documents that only one of both
    methods solves. The first term is that of McNemar's test without correction; the exact test, which counts whole
    documents, needs up to the second more.

    Args:
        size: the difference, such as 0.05 for 5 points; infinite documents for 0.
        discordant: the share d; a difference of `size` needs at least as much.
    """
    size = abs(size)
    if not size:
        return math.inf
    share = min(1.0, max(discordant, size))
    root = Z * math.sqrt(share) + Z_POWER * math.sqrt(max(0.0, share - size**2))
    return math.ceil(root**2 / size**2 + 2 / size)


def documents_for_mean(size: float, spread: float) -> float:
    """The same for other scores: n = ((z₀.₉₇₅ + z₀.₈) · spread / size)², with the standard deviation of changes."""
    return math.ceil(((Z + Z_POWER) * spread / size) ** 2) if size else math.inf
