"""The paired bootstrap of a speedup."""

import numpy as np
import pytest
from scipy.stats import bootstrap

from specbench import stats
from specbench.stats import speedup


def documents(rng, count, truth):
    """Paired times and tokens of `count` documents; the baseline takes `truth` times as long a token on average."""
    base_tokens, tokens = rng.integers(20, 120, count).astype(float), rng.integers(20, 120, count).astype(float)
    slowness = rng.gamma(20, 1 / 20, count)  # of a document, for both; mean 1
    base = base_tokens * truth * slowness * rng.gamma(50, 1 / 50, count)
    return base, base_tokens, tokens * slowness * rng.gamma(50, 1 / 50, count), tokens


def test_value_by_hand():
    found = speedup(np.array([2.0, 4.0]), np.array([10.0, 5.0]), np.array([1.0, 1.0]), np.array([8.0, 8.0]))
    assert found.value == pytest.approx((6 / 15) / (2 / 16))  # pooled, not a mean of ratios
    # Only three different draws exist: document 0 twice, 1 twice, or both.
    assert found.low == pytest.approx((2 / 10) / (1 / 8))
    assert found.high == pytest.approx((4 / 5) / (1 / 8))


def test_equal_times_give_a_sure_one():
    times, tokens = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 9.0])
    found = speedup(times, tokens, times, tokens)
    assert (found.value, found.low, found.high) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize("empty", range(4))
def test_none_when_nothing_was_decoded(empty):
    columns = [np.ones(3) for _ in range(4)]
    columns[empty] = np.zeros(3)
    assert speedup(*columns) is None
    assert speedup(*[np.empty(0)] * 4) is None


def test_documents_that_end_with_the_prefill_are_no_trouble():
    found = speedup(np.array([1.0, 0.0]), np.array([5.0, 0.0]), np.array([0.5, 0.0]), np.array([5.0, 0.0]))
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))


def test_reproducible_by_seed():
    columns = documents(np.random.default_rng(1), 20, 1.7)
    assert speedup(*columns, seed=3) == speedup(*columns, seed=3)
    assert speedup(*columns, seed=3) != speedup(*columns, seed=4)


def test_interval_covers_the_truth(monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 2000)
    rng = np.random.default_rng(2)
    found = [speedup(*documents(rng, 60, 1.7)) for _ in range(200)]
    covered = np.mean([one.low <= 1.7 <= one.high for one in found])
    assert 0.90 <= covered <= 0.99


def test_pairing_narrows_the_interval():
    rng = np.random.default_rng(3)
    tokens = np.full(50, 100.0)
    base = rng.gamma(2, 1, 50) + 0.1
    mine = base / 2 * rng.normal(1, 0.01, 50)
    paired = speedup(base, tokens, mine, tokens)
    shuffled = speedup(base, tokens, rng.permutation(mine), tokens)
    assert paired.value == pytest.approx(shuffled.value)
    assert (paired.high - paired.low) * 5 < shuffled.high - shuffled.low


def test_agrees_with_scipy():
    columns = documents(np.random.default_rng(4), 30, 2.5)
    found = speedup(*columns)

    def ratio(a, b, c, d, axis=-1):
        return (a.sum(axis) / b.sum(axis)) / (c.sum(axis) / d.sum(axis))

    expected = bootstrap(
        columns, ratio, paired=True, vectorized=True, method="percentile", n_resamples=10_000, rng=5
    ).confidence_interval
    width = expected.high - expected.low
    assert found.low == pytest.approx(expected.low, abs=0.05 * width)
    assert found.high == pytest.approx(expected.high, abs=0.05 * width)
    assert found.value == pytest.approx(float(ratio(*columns)))
