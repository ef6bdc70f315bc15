"""What `specbench tables` wrote of every document and of figures from files, read again: tables without the runs."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from specbench import config
from specbench.analysis import pooled
from specbench.analysis.workers import HARDWARE
from specbench.base import parquet
from specbench.config import UserError
from specbench.papers.on_pair import COUNTED, OnPair
from specbench.papers.ours import Ours
from specbench.papers.published import Figure, Paper, read_figures

DOCUMENTS, FIGURES = "documents.parquet", "figures.csv"
REMEDY = "write the tables again: `specbench tables`"
# What a run's documents also have, and neither verdicts nor cells need.
UNKNOWN: dict[str, object] = dict.fromkeys(["B", "target", "draft", "arbitrator", "masks", "models", "least"], np.nan)
UNKNOWN |= {
    "memory": np.nan,
    "cut": np.nan,
    "worker": 0,
    "number": 0,
    "host": "",
    "device": "",
    "hardware": json.dumps(dict.fromkeys(HARDWARE)),
}
UNKNOWN |= {"empty": False, "loops": False, "no_text": False, "untimed": "", "unlimited": ""}
TEXTS = [*pooled.ROW, "baseline", "run"]
SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in TEXTS),
        *(pa.field(name, pa.int32()) for name in ("repeat", "doc_id")),
        *(pa.field(name, pa.float64()) for name in (*COUNTED, "score")),
    ]
)


class Stored(Ours):
    """What a folder of tables holds, and `further` runs, each in place of a stored one of its name.

    A method's label is its name. Files with figures that come from no run take the place of what is stored of their
    tables.
    """

    def __init__(self, folder: Path, chosen: list[Paper], further: Sequence[Ours] = ()) -> None:
        """Raises UserError for files that are missing or damaged."""
        rows = read_documents(folder / DOCUMENTS)
        path = folder / FIGURES
        self.figures = [(figure, path) for figure in read_figures(path)] if path.exists() else []
        for ours in further:
            new = ours.every_document()
            rows = pd.concat([rows[~rows.run.isin(new.run)], new], ignore_index=True)
            replaced = {_table(figure) for figure, _ in ours.figures}
            self.figures = [known for known in self.figures if _table(known[0]) not in replaced] + ours.figures
        self._rows = rows
        names = list(dict.fromkeys(rows.pair))
        stand_ins = {name for paper in chosen for name in paper.bundled.values()}
        self.default = config.load_pair(next((name for name in names if name not in stand_ins), names[0]))
        self._on = {
            name: OnPair(
                name, self.default, measured_of(mine), self.figures, [*dict.fromkeys(mine.run)], sources_of(mine)
            )
            for name, mine in ((name, rows[rows.pair == name]) for name in names)
        }

    def every_document(self) -> pd.DataFrame:
        return self._rows


def _table(figure: Figure) -> tuple[str, int, str]:
    return figure.paper, figure.table, figure.pair


def sources_of(rows: pd.DataFrame) -> dict[tuple[str, str, str], list[str]]:
    """The runs that have a method's rows, by sampling, task and method."""
    known: dict[tuple[str, str, str], list[str]] = {}
    for sampling, task, method, run in dict.fromkeys(zip(rows.sampling, rows.task, rows.method, rows.run, strict=True)):
        known.setdefault((sampling, task, method), []).append(run)
    return known


def is_stored(folder: Path) -> bool:
    """True for a folder of tables; a run has documents too, which are its prompts, and a manifest."""
    return (folder / DOCUMENTS).exists() and not (folder / "manifest.json").exists()


def read_documents(path: Path) -> pd.DataFrame:
    """The rows of every document. Raises UserError for a file of another form."""
    rows = parquet.read(path, SCHEMA, SCHEMA.names, remedy=REMEDY).to_pandas()
    if rows.empty or rows[TEXTS[:4]].isna().any(axis=None):
        raise UserError(f"{path} has no documents, or some without a pair, sampling, task or method; {REMEDY}")
    return rows


def measured_of(rows: pd.DataFrame) -> pooled.Measured:
    """The rows of one pair as `pooled.measured` gives them, as far as tables and verdicts need it."""
    key = [*pooled.ROW, *pooled.ONCE, "doc_id"]
    alone = rows.decode.notna()
    counts = rows.assign(batched=np.where(alone, np.nan, 0.0), **UNKNOWN).set_index(key)
    counts = counts[[*COUNTED, *UNKNOWN, "batched"]].sort_index()
    scores = rows[[*key, "score"]].rename(columns={"score": "value"}).dropna(subset="value")
    baselines = rows.dropna(subset="baseline").drop_duplicates("method").set_index("method").baseline.to_dict()
    return pooled.Measured(
        counts=counts,
        scores=scores.assign(stderr=np.nan),
        depths=pd.DataFrame(),
        errors=pd.Series(dtype=int, index=pd.MultiIndex.from_arrays([[]] * len(pooled.ROW), names=pooled.ROW)),
        methods=list(dict.fromkeys(rows.method)),
        metric=dict.fromkeys(rows.task, ""),
        baselines=baselines,
        asked={},
        unlike={},
        totals={},
        mismatches=[],
        conditions={},
        group=None,
        imported=frozenset(),
    )
