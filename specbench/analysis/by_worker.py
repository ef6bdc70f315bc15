"""What each worker of a run measured, on its own documents."""

import numpy as np
import pandas as pd

from specbench.analysis import metrics, workers
from specbench.analysis.compare import paired
from specbench.analysis.pooled import ROW, Measured
from specbench.base import stats

COLUMNS = [*ROW, *workers.WHO, "baseline", "documents", "tokens_per_s"]
COLUMNS += ["speedup_decode", "speedup_decode_low", "speedup_decode_high"]


def table(runs: Measured) -> pd.DataFrame:
    """A row for each pair, sampling, task, method and worker; a worker on several tasks has a row for each."""
    rows = []
    for key, mine in runs.by_row.items():
        nothing = runs.counts.iloc[:0].droplevel(ROW)
        base = runs.by_row.get((*key[:3], runs.baselines.get(key[3], "")), nothing)
        for (run, worker), texts in mine.groupby(["run", "worker"]):
            first = texts.iloc[0]
            of_worker = base[(base.index.get_level_values("run") == run) & (base.worker == worker)]
            times = paired(texts, of_worker)
            speed = metrics.rates(texts.assign(row=0), ["row"]).tokens_per_s.iloc[0]
            row = {**dict(zip(ROW, key, strict=True)), "host": first.host, "device": first.device}
            row |= {
                "worker": first.number,
                "baseline": runs.baselines.get(key[3], ""),
                "documents": texts.index.get_level_values("doc_id").nunique(),
            }
            row |= {"tokens_per_s": np.nan if workers.unlike(texts) else speed}
            row |= metrics.interval_columns("speedup_decode", stats.speedup(times) if times else None)
            rows.append(row)
    unsorted = pd.DataFrame(rows, columns=COLUMNS)
    tasks, methods = list(dict.fromkeys(unsorted.task)), runs.methods
    order = [(tasks.index(row.task), row.host, row.worker, methods.index(row.method)) for row in unsorted.itertuples()]
    return unsorted.iloc[sorted(range(len(unsorted)), key=order.__getitem__)].reset_index(drop=True)
