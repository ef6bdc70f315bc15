"""How often the 95 % intervals of speedups and scores hold the true value, for runs of 5 to 150 documents.

Speed: the documents of results/reference/times-by-document.csv stand for all documents there are; their pooled speedup
is the true one, and runs are drawn from them with replacement.

Right-or-wrong scores: the shares of intervals are exact sums over all outcomes, and their mean over all true shares is
what counts. For a single share they swing, as whole documents must; the least is printed too.

Other scores: beta distributions with the mean and spread that ROUGE had for the two models of the pair,
of which the target's crowd at 1.

Run by `make bench`; exits with 1 if a share is outside of 0.93 to 0.97. Where scores crowd at an end, the intervals of
few documents may hold more often.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binom

from specbench.base.scores import mean_score, wilson
from specbench.base.stats import Paired, speedup

TIMES = Path(__file__).parents[2] / "results" / "reference" / "times-by-document.csv"
SIZES = (5, 10, 20, 50, 150)
RUNS = 4000
WANTED = (0.93, 0.97)
GRADED = ((0.547, 0.086), (0.989, 0.0245))  # mean and standard deviation over documents, from 150 of them


def covered(columns: np.ndarray, documents: int, rng: np.random.Generator) -> float:
    """The share of runs whose interval holds the speedup of all documents; columns as in `Paired` [4, documents]."""
    whole = speedup(Paired(*columns))
    assert whole is not None
    held = 0
    for drawn in rng.integers(0, columns.shape[1], (RUNS, documents)):
        run = speedup(Paired(*columns[:, drawn]))
        held += run is not None and run.low <= whole.value <= run.high
    return held / RUNS


def of_shares(documents: int) -> np.ndarray:
    """The probability that Wilson's interval holds the true share, for each of 2000 shares from 0 to 1."""
    truth = (np.arange(2000) + 0.5)[:, None] / 2000
    right = np.arange(documents + 1)
    intervals = [wilson(count / documents, documents) for count in right]
    low, high = (np.array([getattr(interval, end) for interval in intervals]) for end in ("low", "high"))
    return (binom.pmf(right, documents, truth) * ((low <= truth) & (truth <= high))).sum(1)


def of_graded(mean: float, spread: float, documents: int, rng: np.random.Generator) -> float:
    """The share of runs whose interval holds the mean of beta distributed scores."""
    weight = mean * (1 - mean) / spread**2 - 1
    drawn = rng.beta(mean * weight, (1 - mean) * weight, (RUNS, documents))
    return float(np.mean([interval.low <= mean <= interval.high for interval in map(mean_score, drawn)]))


def line(name: str, shares: Sequence[float]) -> None:
    print(f"{name}: " + ", ".join(f"n = {n}: {share:.3f}" for n, share in zip(SIZES, shares, strict=True)))


def main() -> int:
    rows = pd.read_csv(TIMES).pivot(index=["task", "doc_id"], columns="method").dropna()
    rng, shares = np.random.default_rng(0), []
    print(f"share of intervals that hold the true speedup, of {RUNS} runs each, {len(rows)} documents")
    for method in ("sps", "csd"):
        names = [("seconds", "vanilla"), ("tokens", "vanilla"), ("seconds", method), ("tokens", method)]
        columns = rows[names].to_numpy(float).T
        results = [covered(columns, size, rng) for size in SIZES]
        line(method, results)
        shares += results
    print("share of intervals that hold the true score")
    right = [of_shares(size) for size in SIZES]
    line("right or wrong, mean of all shares", [float(share.mean()) for share in right])
    line("right or wrong, least of shares from 0.05 to 0.95", [float(share[100:-100].min()) for share in right])
    even, crowded = ([of_graded(*scores, size, rng) for size in SIZES] for scores in GRADED)
    line("ROUGE of the draft, 0.547 on average", even)
    line("ROUGE of the target, 0.989 on average", crowded)
    shares += [float(share.mean()) for share in right] + even
    return int(not WANTED[0] <= min(shares) <= max(shares) <= WANTED[1] or not WANTED[0] <= min(crowded))


if __name__ == "__main__":
    sys.exit(main())
