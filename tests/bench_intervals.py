"""How often the 95 % interval of a speedup holds the true one, with the noise of recorded documents.

The documents of results/reference/times-by-document.csv stand for all documents there are: their pooled speedup is the
true one, and runs of 5 to 150 documents are drawn from them with replacement. Run by `make bench`; exits with 1 if the
share is outside of 0.93 to 0.97 anywhere.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from specbench.base.stats import Paired, speedup

TIMES = Path(__file__).parents[1] / "results" / "reference" / "times-by-document.csv"
SIZES = (5, 10, 20, 50, 150)
RUNS = 4000
WANTED = (0.93, 0.97)


def covered(columns: np.ndarray, documents: int, rng: np.random.Generator) -> float:
    """The share of runs whose interval holds the speedup of all documents; columns as in `Paired` [4, documents]."""
    whole = speedup(Paired(*columns))
    assert whole is not None
    held = 0
    for drawn in rng.integers(0, columns.shape[1], (RUNS, documents)):
        run = speedup(Paired(*columns[:, drawn]))
        held += run is not None and run.low <= whole.value <= run.high
    return held / RUNS


def main() -> int:
    rows = pd.read_csv(TIMES).pivot(index=["task", "doc_id"], columns="method").dropna()
    rng, shares = np.random.default_rng(0), []
    print(f"share of intervals that hold the true speedup, of {RUNS} runs each, {len(rows)} documents")
    for method in ("sps", "csd"):
        names = [("seconds", "vanilla"), ("tokens", "vanilla"), ("seconds", method), ("tokens", method)]
        columns = rows[names].to_numpy(float).T
        found = [covered(columns, size, rng) for size in SIZES]
        print(f"{method}: " + ", ".join(f"n = {n}: {share:.3f}" for n, share in zip(SIZES, found, strict=True)))
        shares += found
    return int(not WANTED[0] <= min(shares) <= max(shares) <= WANTED[1])


if __name__ == "__main__":
    sys.exit(main())
