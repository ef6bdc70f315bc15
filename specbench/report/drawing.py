"""What images and pages draw alike: the colour of a method, the range of an axis, and the front of the best."""

import zlib
from collections.abc import Iterable, Sequence

import pandas as pd

# Okabe and Ito's, but for the yellow and the second blue, and four more; each is legible on white and on a dark page.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#C8374A", "#8B62C4", "#A0693B", "#8A9A2B")
BASES = ("#6B7076", "#9098A0", "#55677A")  # of baselines
# Methods that are often side by side; the others get a colour by their name.
NAMED = ("sps", "csd", "specdecpp", "fly", "eagle3", "pld", "cos", "rest", "swift")
SCORES = 20.0  # points of a score that an axis shows at least: noise must not fill it
# Of a method's colour in the parts of its time.
OPACITY = {"target": 1.0, "draft": 0.5, "further models": 0.25, "masks": 0.12, "outside forwards": 0.0}
RATES = 0.2  # discarded drafts, or target forwards, a token that an axis shows at least
SPEEDS = (0.9, 1.1)  # speedups that an axis shows at least


def colour_of(method: str) -> str:
    """The colour of a method that is no baseline, by its name with its varied settings, such as csd[gamma=4]."""
    place = NAMED.index(method) if method in NAMED else zlib.crc32(method.encode("utf-8", "replace"))
    return COLOURS[place % len(COLOURS)]


def colours_of(methods: Iterable[str]) -> dict[str, str]:
    """A colour for each method of a figure, by name: its own, or where another one has that, the next that is free.

    Of more methods than COLOURS some share one.
    """
    found: dict[str, str] = {}
    for method in sorted(dict.fromkeys(methods), key=lambda name: (name not in NAMED, name)):
        found[method] = free(COLOURS, COLOURS.index(colour_of(method)), found.values())
    return found


def free(choices: Sequence[str], first: int, taken: Iterable[str]) -> str:
    """The choice at `first`, or the next one that is not taken; that at `first` if all are."""
    used = set(taken)
    order = [choices[(first + i) % len(choices)] for i in range(len(choices))]
    return next((choice for choice in order if choice not in used), order[0])


def score_range(low: float, high: float) -> tuple[float, float]:
    """The limits of an axis of scores in percent, for values from low to high: within 0 to 100, and not too narrow."""
    low, high = max(0.0, low), min(100.0, high)
    if high - low < SCORES:
        low = min(max(0.0, (low + high - SCORES) / 2), 100.0 - SCORES)
        high = low + SCORES
    margin = 0.04 * (high - low)  # for the markers at an end
    return (low - margin if low == 0 else low), (high + margin if high == 100 else high)


def speed_range(low: float, high: float) -> tuple[float, float]:
    """The limits of an axis of speedups, which holds 1 and what is near to it."""
    return min(low, SPEEDS[0]), max(high, SPEEDS[1])


def rate_range(low: float, high: float) -> tuple[float, float]:
    """The limits of an axis of rates, which are not negative, for values from low to high; not too narrow."""
    low = max(0.0, low)
    if high - low < RATES:
        low = max(0.0, (low + high - RATES) / 2)
        high = low + RATES
    return low, high


def pareto(x: pd.Series, y: pd.Series) -> pd.Series:
    """True for each point that no other beats in x or y without being worse in the other."""
    xs, ys = x.to_numpy(), y.to_numpy()
    better = (xs >= xs[:, None]) & (ys >= ys[:, None])
    beaten = better & ((xs > xs[:, None]) | (ys > ys[:, None]))
    return pd.Series(~beaten.any(axis=1), index=x.index)


def front(x: pd.Series, y: pd.Series, left: float, bottom: float) -> tuple[list[float], list[float]]:
    """The corners of the Pareto front from the left edge of a plot to its bottom.

    It is drawn as steps: up or down at a corner first, then across to the next one.
    """
    best = pareto(x, y)
    points = pd.DataFrame({"x": x[best], "y": y[best]}).sort_values(["x", "y"], ascending=[True, False])
    return [left, *points.x, points.x.iloc[-1]], [points.y.iloc[0], *points.y, bottom]


def mixed_models(mismatches: Iterable[str]) -> bool:
    """True if runs of other models were let into one comparison."""
    return any(line.startswith("MISMATCH") and ": models: " in line for line in mismatches)
