"""How far `simulate` is off: every draft length of a run, foretold from every other, as a CSV file.

    python tools/recipes/simulate_errors.py RUN… OUT.csv

The runs are those of `specbench sweep --method sps --param gamma=1,2,4,8`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis.simulate import simulate
from specbench.analysis.simulated_rows import ALL
from specbench.results.stored import StoredRun


def rows(run: StoredRun) -> Iterator[dict[str, Any]]:
    """A row for each recorded length and each foretold one: tokens/s, and by which share they are off."""
    lengths = {spec.values["gamma"]: spec.name for spec in run.plan.methods if "gamma" in spec.values}
    for recorded, method in lengths.items():
        simulated = simulate(run, method, None, sorted(lengths))
        facts = {"pair": run.plan.pair.name, "documents": simulated.texts, "recorded": f"gamma={recorded}"}
        for row in simulated.table[simulated.table.task == ALL].to_dict("records"):
            if row["measured"] != method:
                known = {name: row[name] for name in ("setting", "tau", "tokens_per_s", "measured_tokens_per_s")}
                yield facts | known | {"error": row["tokens_per_s"] / row["measured_tokens_per_s"] - 1}


if __name__ == "__main__":
    *folders, out = sys.argv[1:]
    frame = pd.DataFrame([row for folder in folders for row in rows(StoredRun(Path(folder)))])
    frame.to_csv(out, index=False)
    print(frame.round(3).to_string(index=False))
