"""Methods of a folder of tables next to another one, document by document: scores or speeds by task, with p values.

    python tools/recipes/compare_stored.py scores results/tables pocket "T=1" vanilla cospec > OUT.csv
    TASK=pocket_gsm8k python tools/recipes/compare_stored.py speeds results/tables pocket "T=1 top-k=50" \
        "sps-eos[gamma=12]" "specdecpp[threshold=0.05]" "specdecpp[threshold=0.3]" > OUT.csv

A document's score is the mean of its draws. Speeds are of the runs that timed both. `_p_holm` is Holm's over the rows.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.base import stats
from specbench.papers import checks
from specbench.papers.stored import DOCUMENTS, read_documents

COLUMNS = {"scores": ["accuracy"], "speeds": ["speedup_decode", "speedup_e2e"]}


def main(kind: str, folder: Path, pair: str, sampling: str, against: str, methods: Sequence[str]) -> None:
    rows = read_documents(folder / DOCUMENTS)
    rows = rows[(rows.pair == pair) & (rows.sampling == sampling) & (rows.task == os.environ.get("TASK", rows.task))]
    lines = []
    for method in methods:
        for task in sorted(set(rows.task[rows.method == method]) & set(rows.task[rows.method == against])):
            of_task = rows[rows.task == task]
            place = {"pair": pair, "sampling": sampling, "task": task, "method": method, "baseline": against}
            place["repeats"] = of_task.repeat[of_task.method == method].nunique()
            lines.append(place | (scores if kind == "scores" else speeds)(of_task, method, against))
    frame = pd.DataFrame(lines)
    for name in COLUMNS[kind]:
        frame[f"{name}_p_holm"] = stats.holm(list(frame[f"{name}_p"]))
    frame.round(6).to_csv(sys.stdout, index=False, lineterminator="\n")


def scores(rows: pd.DataFrame, method: str, against: str) -> dict[str, Any]:
    mine, other = shared(rows, method, against)
    known = checks.difference([(mine, other)])
    means = {"documents": len(mine), "accuracy": mine.score.mean(), "accuracy_baseline": other.score.mean()}
    return means | {"accuracy_delta": known.value, "accuracy_p": known.p, "accuracy_test": known.test}


def speeds(rows: pd.DataFrame, method: str, against: str) -> dict[str, Any]:
    runs = set(rows.run[rows.method == method]) & set(rows.run[rows.method == against])
    pair = shared(rows[rows.run.isin(runs)], method, against)
    known: dict[str, Any] = {"documents": len(pair[0])}
    for name in COLUMNS["speeds"]:
        ratio = checks.ratio([pair], name)
        assert ratio
        known |= {name: ratio.value, f"{name}_low": ratio.low, f"{name}_high": ratio.high, f"{name}_p": ratio.p}
    return known


def shared(rows: pd.DataFrame, method: str, against: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The sums and the mean score of each document that both have."""
    groups = [rows[rows.method == name].groupby("doc_id") for name in (method, against)]
    mine, other = (group.sum(numeric_only=True).assign(score=group.score.mean()) for group in groups)
    both = mine.index.intersection(other.index)
    return mine.loc[both], other.loc[both]


if __name__ == "__main__":
    what, folder, pair, sampling, against, *methods = sys.argv[1:]
    main(what, Path(folder), pair, sampling, against, methods)
