"""τ of trained heads next to that of the head that they began as: the tables of `tools/recipes/go-on.sh`.

    python tools/recipes/gains.py runs/go-on-dflash-1 dflash dflash-plain dflash-opd > gains.csv

A run whose methods are the first NAME and heads NAME-SEED. A row holds τ of a NAME, the mean of the tasks with a 95 %
interval over documents, and its ratio to another NAME's, on the same documents in pairs. Several seeds count as repeats
of a document.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from specbench.analysis import pooled
from specbench.base import stats
from specbench.base.stats import Interval
from specbench.results.stored import StoredRun
from specbench_extras.drafts.study import by_document, gain

HEADS = (
    "sampling",
    "head",
    "seeds",
    "documents",
    "tau",
    "tau_low",
    "tau_high",
    "over",
    "gain",
    "gain_low",
    "gain_high",
)


def main(folder: Path, names: Sequence[str]) -> None:
    run = StoredRun(folder)
    counts = pooled.measured([run], unfinished=True).counts
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(HEADS)
    for number, name in enumerate(names):
        mine = of_head(counts, name)
        for other in names[:number] or [""]:
            ratio = gain(of_head(counts, other), mine) if other else None
            row = [run.sampling, name, mine.index.get_level_values("method").nunique(), len(by_document(mine))]
            writer.writerow([*row, *rounded(tau(mine)), other, *rounded(ratio)])


def of_head(counts: pd.DataFrame, name: str) -> pd.DataFrame:
    """The counts of a head, of all its seeds."""
    methods = counts.index.get_level_values("method")
    return counts[(methods == name) | methods.str.fullmatch(rf"{name}-\d+")]


def tau(counts: pd.DataFrame) -> Interval | None:
    parts = [part for _, part in by_document(counts).groupby(level="task", sort=False)]
    return stats.average_rate([(part.C.to_numpy(np.float64), part.R.to_numpy(np.float64)) for part in parts])


def rounded(interval: Interval | None) -> list[float | str]:
    return [round(value, 4) for value in (interval.value, interval.low, interval.high)] if interval else [""] * 3


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
