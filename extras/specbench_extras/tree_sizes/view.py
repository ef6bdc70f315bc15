"""Acceptance by rank, and the best trees for it."""

from specbench.report.finding import Finding, Sheet, estimate
from specbench_extras.tree_sizes.analysis import TreeSizes


def view(figures: TreeSizes) -> Finding:
    ranks = [[str(row["rank"]), str(row["places"]), estimate(row)] for row in figures.ranks.to_dict("records")]
    trees = [
        [f"{row['nodes']:.0f}", f"{row['levels']:.0f}", *(f"{row[key]:.2f}" for key in ("tokens", "speedup"))]
        for row in figures.trees.to_dict("records")
    ]
    best, rates = figures.best, ",".join(f"{rate:g}" for rate in figures.rates)
    return Finding(
        "tree",
        f"ACCEPTANCE BY RANK, AND THE BEST TREES ({figures.sampling})\n{figures.method}, {figures.documents} documents",
        [
            Sheet(["rank", "places", "accepted"], ranks),
            Sheet(["nodes", "levels", "tokens a round", "times vanilla"], trees, "the best tree of each size"),
        ],
        [
            f"the fastest has {best.nodes:.0f} nodes and {best.levels:.0f} levels: "
            f"--set sequoia.acceptance=[{rates}] --set sequoia.nodes={best.nodes:.0f} "
            f"--set sequoia.gamma={best.levels:.0f}"
        ],
        [
            "accepted: of the places with a child of this rank; [ ]: 95 %, bootstrap over documents",
            "tokens a round and times vanilla: predicted, if each rank is accepted at this rate everywhere",
            "choose settings by documents that no test uses, such as those of --split validation",
        ],
        vars(figures),
    )
