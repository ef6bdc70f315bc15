"""The scores of a run's texts, by its tasks: no model is needed."""

from pathlib import Path

from specbench.base.folder import member
from specbench.measure.work import Documents
from specbench.results import records


def score(folder: Path, tasks: Documents) -> None:
    """Score the stored texts by lm-eval, and write `scores.parquet`."""
    columns = ["repeat", "task", "doc_id", "method", "warmup", "finish", "text"]
    samples = records.read_rows(folder, "samples", columns).to_pandas()
    decoded = samples[~samples.warmup & (samples.finish != "error")]
    rows = []
    for (repeat, method), group in decoded.groupby(["repeat", "method"], sort=False):
        keys = zip(group.task, group.doc_id, strict=True)
        scores = tasks.score(dict(zip(keys, group.text, strict=True)))
        rows += [{"repeat": repeat, "method": method, **vars(row)} for row in scores]
    records.write_table(member(folder, "scores.parquet"), rows, records.SCORES)
