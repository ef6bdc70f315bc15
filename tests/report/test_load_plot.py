"""The plot of a server's methods: where its points stand."""

import math

import pandas as pd
import pytest

from specbench.report.plots.load import load
from specbench.report.views.load import FEWEST, sentences
from specbench.studies.under_load import Loaded


def figures() -> Loaded:
    table = pd.DataFrame(
        [
            {"method": "sps", "rate": 4.0, "tokens_per_s": 90.0, "e2e_p50": 0.5, "latency_ratio": 2.0},
            {"method": "vanilla", "rate": 4.0, "tokens_per_s": 80.0, "e2e_p50": 1.0, "latency_ratio": 1.0},
            {"method": "sps", "rate": math.inf, "tokens_per_s": 300.0, "e2e_p50": 3.0, "latency_ratio": 1.5},
            {"method": "sps", "rate": 2.0, "tokens_per_s": 50.0, "e2e_p50": 0.4, "latency_ratio": 2.5},
        ]
    )
    by_rows = pd.DataFrame(
        [
            {"method": "vanilla", "rows": 1, "steps": FEWEST, "tokens_per_s": 10.0, "speedup": 1.0},
            {"method": "sps", "rows": 1, "steps": FEWEST, "tokens_per_s": 18.0, "speedup": 1.8},
            {"method": "sps", "rows": 2, "steps": FEWEST - 1, "tokens_per_s": 18.0, "speedup": 9.0},
        ]
    )
    settings = {"vanilla": {}, "sps": {"gamma": 4}}
    return Loaded("pocket", "math", "greedy", "poisson", 8, 20, {}, {"cpu": "a processor"}, settings, table, by_rows)


def test_points_by_hand():
    fig = load(figures())
    latency, faster, company = ({line.get_label(): line for line in ax.lines} for ax in fig.axes)
    assert latency["sps"].get_xydata().tolist() == [[50, 0.4], [90, 0.5], [300, 3.0]]  # by rate
    assert latency["vanilla"].get_xydata().tolist() == [[80, 1.0]]
    assert faster["sps"].get_xydata().tolist() == [[2, 2.5], [4, 2.0]]  # all at once is no rate
    assert company["sps"].get_xydata().tolist() == [[1, 1.8]]  # too few steps of two texts
    assert "pocket, math, greedy; a processor" in fig.get_suptitle()
    assert fig.axes[0].get_ylim()[0] == pytest.approx(0)


def test_a_difference_within_the_noise_is_no_gain():
    """1.04 times as fast at 4 requests a second, 1.06 at 2."""
    some = figures()
    some.table["latency_ratio"] = [1.04, 1.0, 1.2, 1.06]
    assert list(sentences(some)) == ["sps: texts end sooner at 2, inf req/s, not at 4."]
    some.table["latency_ratio"] = [1.04, 1.0, 0.9, 1.01]
    assert list(sentences(some)) == ["sps: texts end no sooner than the target's alone at any rate measured."]
