"""The ratio of τ of trained heads: seeds of a head as repeats of a document, and the means of tasks by hand."""

import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools" / "recipes"))
import gains


def counts() -> pd.DataFrame:
    """Two tasks of two documents; per method and document tokens C in rounds R."""
    rounds = {
        "x": [(10, 5), (30, 10), (12, 3), (8, 2)],
        "x-plain-0": [(10, 4), (30, 10), (12, 4), (8, 2)],
        "x-opd-0": [(10, 2), (30, 10), (12, 3), (8, 1)],
        "x-opd-1": [(20, 4), (30, 10), (12, 3), (8, 2)],
    }
    places = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    rows = [
        {"task": task, "doc_id": document, "method": method, "A": 1, "J": 1, "C": tokens, "R": number}
        for method, pairs in rounds.items()
        for (task, document), (tokens, number) in zip(places, pairs, strict=True)
    ]
    return pd.DataFrame(rows).set_index(["task", "doc_id", "method"])


def test_the_seeds_of_a_head_are_its_own_and_no_others():
    names = {name: gains.of_head(counts(), name).index.get_level_values("method").unique() for name in ("x", "x-opd")}
    assert list(names["x"]) == ["x"] and list(names["x-opd"]) == ["x-opd-0", "x-opd-1"]


def test_tau_is_the_mean_of_tasks_of_tokens_over_rounds_of_all_seeds():
    assert gains.tau(gains.of_head(counts(), "x")).value == pytest.approx((40 / 15 + 20 / 5) / 2)
    assert gains.tau(gains.of_head(counts(), "x-opd")).value == pytest.approx((90 / 26 + 40 / 9) / 2)


def test_an_interval_is_left_empty_where_there_is_none():
    assert gains.rounded(None) == ["", "", ""]
