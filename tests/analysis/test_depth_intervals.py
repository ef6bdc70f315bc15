"""Intervals of acceptance at a depth are over documents, of whatever task."""

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.depth_intervals import acceptance
from specbench.base.stats import pooled_rate

ACCEPTED = ((3, 1), (2, 2), (4, 0), (1, 3))  # drafts of one token that each document accepted and rejected


def counts(keys):
    rows = [
        {"task": task, "doc_id": doc, "D": 1, "A": number, "cut": False, "R": rounds}
        for (task, doc), pair in zip(keys, ACCEPTED, strict=True)
        for number, rounds in zip((1, 0), pair, strict=True)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("tasks", ["aaaa", "aabb"])
def test_documents_of_two_tasks_are_four(tasks):
    """A number of a document is its own within its task only."""
    keys = [(task, n if tasks == "aaaa" else n % 2) for n, task in enumerate(tasks)]
    (row,) = acceptance(counts(keys)).to_dict("records")
    wanted = pooled_rate(np.array([3.0, 2, 4, 1]), np.array([4.0, 4, 4, 4]))
    assert row["cond_accept"] == 10 / 16
    assert (row["low"], row["high"]) == pytest.approx((wanted.low, min(1.0, wanted.high)))
