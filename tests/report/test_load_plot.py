"""The plot of a server's methods: where its points stand."""

import math

import pandas as pd
import pytest

from specbench.report.plots.load import load
from specbench.report.views.load import FEWEST, paying
from specbench.studies.under_load import LoadFigures


def figures() -> LoadFigures:
    table = pd.DataFrame(
        [
            {"method": "sps", "rate": 4.0, "tokens_per_s": 90.0, "e2e_p50": 0.5, "sooner": 2.0},
            {"method": "vanilla", "rate": 4.0, "tokens_per_s": 80.0, "e2e_p50": 1.0, "sooner": 1.0},
            {"method": "sps", "rate": math.inf, "tokens_per_s": 300.0, "e2e_p50": 3.0, "sooner": 1.5},
            {"method": "sps", "rate": 2.0, "tokens_per_s": 50.0, "e2e_p50": 0.4, "sooner": 2.5},
        ]
    )
    table = table.assign(sooner_low=table.sooner - 0.5, sooner_high=table.sooner + 0.5, stable=True, errors=0)
    by_rows = pd.DataFrame(
        [
            {"method": "vanilla", "rows": 1, "steps": FEWEST, "tokens_per_s": 10.0, "speedup": 1.0},
            {"method": "sps", "rows": 1, "steps": FEWEST, "tokens_per_s": 18.0, "speedup": 1.8},
            {"method": "sps", "rows": 2, "steps": FEWEST - 1, "tokens_per_s": 18.0, "speedup": 9.0},
        ]
    )
    settings = {"vanilla": {}, "sps": {"gamma": 4}}
    return LoadFigures(
        pair="pocket",
        suite="math",
        sampling="greedy",
        arrivals="poisson",
        rows=8,
        requests=20,
        repeats=1,
        slo={},
        saturation={},
        leaks={},
        failures={},
        environment={"cpu": "a processor"},
        settings=settings,
        table=table,
        by_rows=by_rows,
    )


def test_points_by_hand():
    fig = load(figures())
    latency, faster, company = ({line.get_label(): line for line in ax.lines} for ax in fig.axes)
    assert latency["sps"].get_xydata().tolist() == [[50, 0.4], [90, 0.5], [300, 3.0]]  # by rate
    assert latency["vanilla"].get_xydata().tolist() == [[80, 1.0]]
    assert faster["sps"].get_xydata().tolist() == [[2, 2.5], [4, 2.0]]  # all at once is no rate
    assert company["sps"].get_xydata().tolist() == [[1, 1.8]]  # too few steps of two texts
    assert "pocket, math, greedy; a processor" in fig.get_suptitle()
    assert fig.axes[0].get_ylim()[0] == pytest.approx(0)


def test_where_a_method_pays_is_told_by_the_intervals():
    some = figures()
    low, high = [1.1, math.nan, math.nan, 0.9], [2.0, math.nan, math.nan, 1.2]
    some.table["sooner_low"], some.table["sooner_high"] = low, high
    (sheet,) = paying(some)
    assert sheet.rows == [["sps", "4", "2, inf", "-"]]  # without an interval nothing is told
    some.table["sooner_low"], some.table["sooner_high"] = [0.5, 1, 0.3, 0.9], [0.9, 1, 0.8, 1.2]
    (sheet,) = paying(some)
    assert sheet.rows == [["sps", "-", "2", "4, inf"]]
