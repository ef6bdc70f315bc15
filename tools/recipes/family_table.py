"""The family table of `tools/recipes/family.sh`: heads of equal budgets, several seeds, on the same test documents.

    python tools/recipes/family_table.py runs/family eagle hass eagle3

FOLDER holds NAME-SEED.safetensors, and `run`, a run of all of them. FOLDER/family.csv and FOLDER/family.md get a row
for each NAME: its parameters; how often its first choice is the target's on held-out answers; the share of rounds that
accepted at least 1, 2, … tokens; milliseconds of drafting a round; the speedup over vanilla. Each is the mean over the
seeds, of agreement and speedup with the lowest and the highest seed. τ, and its ratio to τ of `eagle` on the same
documents in pairs, have 95 % intervals over documents, of which seeds are repeats.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from gains import of_head, tau
from safetensors import safe_open

import specbench
from specbench.analysis import pooled
from specbench.base.stats import Interval
from specbench.results.stored import StoredRun
from specbench_extras.drafts.study import by_document, gain

DEPTHS = (1, 2, 3, 5, 8)
BASE = "eagle"
ENDS = ("", "_low", "_high")


def main(folder: Path, names: Sequence[str]) -> None:
    counts = pooled.measured([StoredRun(folder / "run")], unfinished=True).counts
    heads = of_each(folder)
    rows = [row(name, heads[heads.name == name], counts) for name in names]
    wide = pd.DataFrame(rows)
    wide.to_csv(folder / "family.csv", index=False)
    words = f"{wide.seeds[0]} seeds, {wide.documents[0]} documents; [ ]: lowest and highest seed; of τ, 95 %"
    (folder / "family.md").write_text(f"{words}\n\n{markdown(wide)}\n")
    print(f"{words}\n\n{markdown(wide)}\n\nfigures: {folder}/family.csv")


def of_each(folder: Path) -> pd.DataFrame:
    """A row for each head of the run."""
    run = specbench.load_run(folder / "run")
    rounds = run.rounds[~run.rounds.warmup & (run.rounds["round"] > 0)]
    speeds = specbench.compare(run)
    averages = speeds[speeds.task == "average"].set_index("method")
    rows = []
    for label, own in rounds.groupby("method"):
        name, _, seed = str(label).rpartition("-")
        if not seed.isdecimal():
            continue
        rows.append(
            {
                "name": name,
                **of_file(folder / f"{label}.safetensors"),
                **{f"accepts {depth}": float((own.accepted >= depth).mean()) for depth in DEPTHS},
                "draft_ms": 1000 * float(own.draft_seconds.mean()),
                "speedup": float(averages.speedup_decode[label]),
            }
        )
    return pd.DataFrame(rows)


def of_file(path: Path) -> dict[str, Any]:
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


def row(name: str, heads: pd.DataFrame, counts: pd.DataFrame) -> dict[str, Any]:
    """What the table says of a NAME: of its `heads`, one a seed, and of their `counts` by document."""
    mine = of_head(counts, name)
    made: dict[str, Any] = {"method": name, "seeds": len(heads), "documents": len(by_document(mine))}
    made["parameters"] = int(heads.parameters.iloc[0])
    for column in heads.columns.drop(["name", "parameters"]):
        made[column] = heads[column].mean()
        if column in ("agreement", "speedup"):
            made |= {f"{column}_low": heads[column].min(), f"{column}_high": heads[column].max()}
    made |= interval("tau", tau(mine))
    return made | interval("tau_over_eagle", gain(of_head(counts, BASE), mine) if name != BASE else None)


def interval(name: str, value: Interval | None) -> dict[str, float]:
    values = (value.value, value.low, value.high) if value else (float("nan"),) * 3
    return dict(zip((name + end for end in ENDS), values, strict=True))


def markdown(wide: pd.DataFrame) -> str:
    shown = pd.DataFrame({"method": wide.method, "parameters": wide.parameters.map("{:,}".format)})
    for column in wide.columns.drop(["method", "seeds", "documents", "parameters"]):
        if column.endswith(ENDS[1:]):
            continue
        digits = 3 if column == "agreement" or column.startswith("accepts") else 2
        shown[column.replace("_", " ")] = [cell(one, column, digits) for _, one in wide.iterrows()]
    lines = [list(shown.columns), ["---"] * len(shown.columns), *shown.astype(str).to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(figures: "pd.Series[Any]", column: str, digits: int) -> str:
    if pd.isna(figures[column]):
        return "–"
    bounds = [figures.get(column + end) for end in ENDS[1:]]
    ends = "" if bounds[0] is None else " [{}]".format(", ".join(f"{bound:.{digits}f}" for bound in bounds))
    return f"{figures[column]:.{digits}f}{ends}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
