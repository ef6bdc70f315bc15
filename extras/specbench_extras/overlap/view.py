"""Measured and modelled speed of methods whose draft and target could work at the same time."""

import pandas as pd

from specbench.report.finding import Finding, Sheet, bounds, number
from specbench_extras.overlap.analysis import Overlap

HEADINGS = ["method", "τ", "α", "measured", "modelled", "hidden", "ready"]


def view(figures: Overlap) -> Finding:
    baselines = ", ".join(sorted(figures.table.baseline.dropna().unique())) or "no baseline"
    return Finding(
        "overlap",
        "IF DRAFT AND TARGET WORKED AT THE SAME TIME",
        [
            Sheet(HEADINGS, [_cells(row) for _, row in part.iterrows()], f"{task}, speedup over {baselines}")
            for task, part in figures.table.groupby("task", sort=False)
        ],
        [],
        [
            "measured: both models in turn, as the run had them",
            "modelled, not measured: each round takes max(draft, target), of mirror draft + max(target, its first "
            "layers + branches that are used), and the host's time outside forwards; two devices would also pay for "
            "what they exchange",
            "ready: the share of drafts that were made before the target had verified; hidden: of the seconds of "
            "drafts and used branches the share that the target's cover; [ ]: 95 %",
            "τ: committed tokens a round; α: accepted share of the tokens that were tested",
        ],
        {"table": figures.table},
    )


def _cells(row: "pd.Series[float]") -> list[str]:
    speeds = [
        number(row[name]) + bounds(row[f"{name}_low"], row[f"{name}_high"]) for name in ("speedup", "modelled_speedup")
    ]
    counts = [number(row["tau"]), number(row["alpha"], ".3f")]
    return [str(row["method"]), *counts, *speeds, number(row["hidden"], ".0%"), number(row["ready"], ".0%")]
