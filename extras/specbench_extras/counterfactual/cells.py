"""The figures as cells of the paper's table, in a file that `specbench tables` reads."""

import math
from typing import Any

from specbench.papers.cells import as_cells, interval, paper_label
from specbench.results.stored import StoredRun
from specbench_extras.counterfactual.analysis import METRICS, Counterfactual

TABLE = 3  # of CoSpec's paper


def cells(run: StoredRun, figures: Counterfactual) -> list[dict[str, Any]]:
    """The kinds of states; the table names no task. No cell where nothing is defined."""
    spec = next(spec for spec in run.plan.methods if spec.name == figures.method)
    label, rows = paper_label(spec, figures.pair), []
    for kind in figures.kinds.to_dict("records"):
        row = [
            (label, metric, interval(kind, name, 100), "%")
            for name, metric in METRICS.items()
            if not math.isnan(kind[name])
        ]
        setting = f"category={kind['kind']}"
        rows += as_cells(TABLE, figures.pair, "", run.plan.temperature, row, setting)
    return rows
