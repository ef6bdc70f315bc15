"""The family table of `tools/recipes/family.sh`: heads of equal budgets, several seeds, on the same test documents.

    python tools/recipes/family_table.py runs/family 0 1 2

FOLDER holds NAME-SEED.safetensors, and run-SEED, a run of all of them. FOLDER/family.csv and FOLDER/family.md get a
row for each head: its parameters; how often its first choice is the target's on held-out answers; the share of rounds
that accepted at least 1, 2, … tokens; milliseconds of drafting a round; τ and the speedup over vanilla, and the speedup
over `eagle`. A figure is the mean over the seeds, with the lowest and the highest seed.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import safe_open

import specbench

DEPTHS = (1, 2, 3, 5, 8)
BASE = "eagle"


def main(folder: Path, seeds: Sequence[str]) -> None:
    table = pd.concat([of_seed(folder, seed) for seed in seeds])
    names = list(dict.fromkeys(table.method))
    rows = [row(name, table[table.method == name]) for name in names]
    wide = pd.DataFrame(rows)
    wide.to_csv(folder / "family.csv", index=False)
    documents = int(table.documents.iloc[0])
    words = f"{len(seeds)} seeds, {documents} documents each; mean [lowest, highest seed]"
    (folder / "family.md").write_text(f"{words}\n\n{markdown(wide)}\n")
    print(f"{words}\n\n{markdown(wide)}\n\nfigures: {folder}/family.csv")


def of_seed(folder: Path, seed: str) -> pd.DataFrame:
    """A row for each head of a seed."""
    run = specbench.load_run(folder / f"run-{seed}")
    rounds = run.rounds[~run.rounds.warmup & (run.rounds["round"] > 0)]
    speeds = of_average(specbench.compare(run))
    names = [name for name in speeds.index if (folder / f"{name}-{seed}.safetensors").is_file()]
    over_base = of_average(specbench.compare(run, against=BASE)) if BASE in names else None
    documents = run.samples[~run.samples.warmup].groupby("method").size()
    rows = []
    for name in names:
        own = rounds[rounds.method == name]
        rows.append(
            {
                "method": name,
                "documents": documents[name],
                **of_head(folder / f"{name}-{seed}.safetensors"),
                **{f"accepts {depth}": float((own.accepted >= depth).mean()) for depth in DEPTHS},
                "draft_ms": 1000 * float(own.draft_seconds.mean()),
                "tau": float(own.committed.mean()),
                "speedup": float(speeds.speedup_decode[name]),
                "over_eagle": float("nan") if over_base is None else float(over_base.speedup_decode[name]),
            }
        )
    return pd.DataFrame(rows)


def of_average(table: pd.DataFrame) -> pd.DataFrame:
    """The averages over tasks by method, or the rows of the only task."""
    chosen = table[table.task == "average"] if (table.task == "average").any() else table
    return chosen.set_index("method")


def of_head(path: Path) -> dict[str, Any]:
    """The parameters of a head file, and its first agreement on held-out answers."""
    with safe_open(path, framework="pt") as file:
        metadata = json.loads(file.metadata()["specbench"])
        names = [name for name in file.keys() if name != "d2t"]  # noqa: SIM118 (it is no mapping)
        parameters = sum(file.get_tensor(name).numel() for name in names)
    trained = metadata["trained"]
    agreement = trained.get("held_out_agreement", trained.get("accuracies"))
    while isinstance(agreement, list):
        agreement = agreement[0]
    return {"parameters": parameters, "agreement": agreement}


def row(name: str, figures: pd.DataFrame) -> dict[str, Any]:
    """The means of a head over the seeds, and the lowest and highest of what differs."""
    made: dict[str, Any] = {"method": name, "parameters": int(figures.parameters.iloc[0])}
    for column in figures.columns.drop(["method", "documents", "parameters"]):
        made[column] = figures[column].mean()
        if column in ("agreement", "tau", "speedup", "over_eagle"):
            made |= {f"{column}_low": figures[column].min(), f"{column}_high": figures[column].max()}
    return made


def markdown(wide: pd.DataFrame) -> str:
    shown = pd.DataFrame({"method": wide.method, "parameters": wide.parameters.map("{:,}".format)})
    for column in wide.columns.drop(["method", "parameters"]):
        if column.endswith(("_low", "_high")):
            continue
        digits = 3 if column == "agreement" or column.startswith("accepts") else 2
        ends = [f"{column}_low", f"{column}_high"]
        shown[column.replace("_", " ")] = [
            f"{one[column]:.{digits}f}"
            + (f" [{one[ends[0]]:.{digits}f}, {one[ends[1]]:.{digits}f}]" if ends[0] in wide else "")
            for _, one in wide.iterrows()
        ]
    lines = [list(shown.columns), ["---"] * len(shown.columns), *shown.astype(str).to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
