"""How sure acceptance at a draft position is: an interval over documents, whose drafts are not independent."""

import math

import numpy as np
import pandas as pd

from specbench.analysis import metrics
from specbench.base.stats import pooled_rate


def acceptance(counts: pd.DataFrame) -> pd.DataFrame:
    """`metrics.acceptance_by_depth` with the 95 % interval of `cond_accept`, as `low` and `high`.

    `counts` are rows of `metrics.depths` by document, of one method. An interval is NaN for fewer than three documents
    that reached a depth, and where one document decides.
    """
    table = metrics.acceptance_by_depth(counts)
    documents = counts.groupby(["task", "doc_id"]).ngroup().to_numpy()
    bounds = [_interval(counts, documents, depth) for depth in table.depth]
    low, high = zip(*bounds, strict=True) if bounds else ((), ())
    return table.assign(low=np.array(low, dtype=float), high=np.array(high, dtype=float))


def _interval(counts: pd.DataFrame, documents: np.ndarray, depth: int) -> tuple[float, float]:
    masks = metrics.at_depth(counts, depth)
    weights = [(counts["R"] * mask).to_numpy(dtype=float) for mask in masks]
    passed, tested = (np.bincount(documents, weight).astype(float) for weight in weights)
    known = tested > 0
    interval = pooled_rate(passed[known], tested[known])
    if interval is None or math.isnan(interval.high):
        return math.nan, math.nan
    return interval.low, min(1.0, interval.high)
