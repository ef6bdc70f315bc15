"""The figures as cells of the paper's table, in a file that `specbench tables` reads."""

from typing import Any

from specbench.papers.cells import as_cells, labels_of
from specbench.results.stored import StoredRun
from specbench_extras.serving.study import Serving

TABLE = 11  # of CoSpec's paper


def cells(run: StoredRun, figures: Serving) -> list[dict[str, Any]]:
    """The methods that the paper's table has; no cell where nothing is known."""
    labels = labels_of(run.plan.methods, figures.pair, TABLE)
    found: list[tuple[str, str, float, str]] = []
    for row in figures.table.to_dict("records"):
        if (label := labels.get(row["method"])) is None:
            continue
        total = row["peak"] if row["peak"] == row["peak"] else row["total"]
        found.append((label, "Serving memory", total * 1e-9, "GB"))
        if row["method"] != "vanilla":
            found.append((label, "Time to first token overhead", 100 * (row["first_token"] - 1), "%"))
        found += [
            (label, metric, row[name], "count")
            for name, metric in (
                ("arbitrator_forwards", "Arbitrator forwards per round"),
                ("rollouts", "RL rollouts per prompt"),
                ("prompts", "Prompts per update"),
            )
        ]
    return as_cells(TABLE, figures.pair, "", figures.temperature, [row for row in found if row[2] == row[2]])
