"""τ of `mtp` by drafted tokens next to that of `eagle3-chain`: the table of `tools/recipes/mtp-smollm2.sh`.

    python tools/recipes/mtp_depth.py runs/mtp runs/eagle3 > mtp-depth.csv

The first run is a sweep over `steps`, the second one over `total_tokens`, which counts the last committed token, too.
Each τ and their ratio have a 95 % interval over documents; the ratio's are the same documents in pairs.
"""

import csv
import re
import sys
from pathlib import Path

import pandas as pd
from gains import rounded, tau

from specbench.analysis import pooled
from specbench.results.stored import StoredRun
from specbench_extras.drafts.study import by_document, gain

INTERVALS = [f"{name}{end}" for name in ("tau_mtp", "tau_eagle3", "ratio") for end in ("", "_low", "_high")]


def main(mtp: Path, eagle3: Path) -> None:
    mine, other = by_length(mtp, "steps", 0), by_length(eagle3, "total_tokens", 1)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["drafted", "documents", *INTERVALS])
    for drafted in sorted(mine.keys() & other.keys()):
        both = mine[drafted], other[drafted]
        intervals = tau(both[0]), tau(both[1]), gain(both[1], both[0])
        row = [value for one in intervals for value in rounded(one)]
        writer.writerow([drafted, len(by_document(both[0])), *row])


def by_length(folder: Path, setting: str, less: int) -> dict[int, pd.DataFrame]:
    """The counts of each draft length of a sweep."""
    counts = pooled.measured([StoredRun(folder)], unfinished=True).counts
    methods = counts.index.get_level_values("method")
    found = {name: re.search(rf"{setting}=(\d+)", name) for name in methods.unique()}
    return {int(match[1]) - less: counts[methods == name] for name, match in found.items() if match}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
