"""The figures of a head that predicts chances: by hand, by pairs, and by a bootstrap of the test's own."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import entropy

from specbench_extras.specdecpp.soft_labels import binary_kl, calibration_error, intervals, rejection_auroc


def test_kl_is_that_of_two_coins():
    p, x = np.array([0.0, 0.3, 1.0, 0.9]), np.array([-2.0, 0.5, 4.0, -1.0])
    expected = [entropy([a, 1 - a], [expit(b), 1 - expit(b)]) for a, b in zip(p, x, strict=True)]
    assert binary_kl(p, x) == pytest.approx(np.mean(expected))
    assert binary_kl(np.array([0.25]), np.array([-math.log(3)])) == pytest.approx(0, abs=1e-12)
    assert binary_kl(np.array([1.0]), np.array([-800.0])) == pytest.approx(800)


def test_calibration_error_by_hand():
    """Bin .2-.3: predicted .25 and .29, accepted 0 and 1: |.54 - 1| / 4; .9-1: .95 and 1, both .8: |1.95 - 1.6| / 4."""
    at = calibration_error(np.array([0, 1, 0.8, 0.8]), np.array([0.25, 0.29, 0.95, 1.0]))
    assert at(np.ones(4)) == pytest.approx((0.46 + 0.35) / 4)
    assert at(np.array([2.0, 1, 0, 0])) == pytest.approx(abs(0.5 + 0.29 - 1) / 3)


def test_auroc_counts_weighted_pairs():
    rng = np.random.default_rng(0)
    accepted, scores, weights = rng.random(40).round(1), rng.integers(0, 8, 40) / 3.0, rng.integers(0, 3, 40)
    above, pairs = 0.0, 0.0
    for (a, s, u), (b, t, v) in itertools.product(zip(accepted, scores, weights, strict=True), repeat=2):
        pair = u * (1 - a) * v * b
        above, pairs = above + pair * ((s < t) + (s == t) / 2), pairs + pair
    assert rejection_auroc(accepted, scores)(weights) == pytest.approx(above / pairs)
    hard = (accepted > 0.5).astype(float)
    assert rejection_auroc(hard, hard)(np.ones(40)) == 1.0 and rejection_auroc(hard, -hard)(np.ones(40)) == 0.0
    assert math.isnan(rejection_auroc(np.ones(40), scores)(np.ones(40)))


def test_intervals_draw_whole_documents():
    """Documents of very different size: the mean's interval by an own bootstrap; the same draws for all statistics."""
    rng = np.random.default_rng(1)
    documents = np.repeat(np.arange(30), rng.integers(1, 60, 30)) + 5
    values = rng.normal(size=30)[documents - 5]

    def mean(weights):
        return float(weights @ values / weights.sum())

    result = intervals({"a": mean, "b": lambda w: mean(w) + 1, "difference": lambda w: 0.0}, documents)
    drawn = []
    for _ in range(2000):
        chosen = rng.integers(0, 30, 30) + 5
        drawn.append(np.concatenate([values[documents == one] for one in chosen]).mean())
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert result["a"].value == pytest.approx(values.mean())
    assert (result["a"].low, result["a"].high) == pytest.approx((low, high), abs=0.05 * (high - low) + 0.02)
    assert result["b"].low == pytest.approx(result["a"].low + 1)
    assert result["difference"].low == result["difference"].high == 0
    alone = intervals({"a": mean}, np.zeros(len(values), int))["a"]
    assert alone.value == result["a"].value and math.isnan(alone.low)
