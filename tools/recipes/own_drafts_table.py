"""How drafts of `own-drafts.sh` learned, and what they do: rows of `results/reference/drafts-smollm2.csv`.

    python tools/recipes/own_drafts_table.py runs/own-drafts > drafts-smollm2.csv

Of each EAGLE-3 head in the folder: by step, the share of choices that are the target's, on held-out answers and on some
that it learns from. Of the draft of first layers: Σ min(p, q) on held-out answers by step. Of each run: τ with a 95 %
interval over documents, by task and method.
"""

import csv
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
from gains import rounded, tau
from safetensors import safe_open

from specbench.analysis import pooled
from specbench.engine.models.heads import KEY
from specbench.results.stored import StoredRun
from specbench_extras.drafts.study import by_document

COLUMNS = [
    "what",
    "task",
    "answers",
    "places",
    "step",
    "held_out",
    "learned",
    "documents",
    "tau",
    "tau_low",
    "tau_high",
]


def heads(folder: Path) -> list[dict[str, object]]:
    """The curves of heads."""
    rows: list[dict[str, object]] = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            trained = json.loads(file.metadata()[KEY])["trained"]
        learned = dict(trained.get("learned_curve", ()))
        told = {"what": path.stem, "answers": trained["learned_answers"], "places": trained["places"]}
        for step, held_out in trained.get("held_out_curve", ()):
            rows.append({**told, "step": step, "held_out": held_out, "learned": learned.get(step)})
    return rows


def drafts(folder: Path) -> list[dict[str, object]]:
    """The curves of draft models."""
    rows: list[dict[str, object]] = []
    for path in sorted(folder.glob("*.log.parquet")):
        for row in pq.read_table(path).to_pylist():
            if row["held_out"] is not None:
                what = path.name.removesuffix(".log.parquet")
                rows.append({"what": what, "step": row["step"], "held_out": round(row["held_out"], 4)})
    return rows


def runs(folder: Path) -> list[dict[str, object]]:
    """What was decoded: τ by task and method, and of all tasks of a run together."""
    rows: list[dict[str, object]] = []
    for path in sorted(folder.glob("*/manifest.json")):
        counts = pooled.measured([StoredRun(path.parent)], unfinished=True).counts
        for method, mine in counts.groupby(level="method"):
            if method != "vanilla":
                value = dict(zip(("tau", "tau_low", "tau_high"), rounded(tau(mine)), strict=True))
                rows.append({"what": method, "task": path.parent.name, "documents": len(by_document(mine)), **value})
    return rows


def main(folder: Path) -> None:
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows([*heads(folder), *drafts(folder), *runs(folder)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
