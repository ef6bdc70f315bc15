"""Intervals of scores, and how many documents a comparison needs, against scipy, enumeration and simulation."""

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest, t

from specbench.base import scores
from specbench.base.stats import Interval, Paired, mcnemar, pooled_rate, speedup


@pytest.mark.parametrize(("right", "documents"), [(0, 5), (5, 5), (1, 3), (94, 100), (150, 150)])
def test_right_or_wrong_scores_have_wilsons_interval(right, documents):
    estimate = scores.mean_score(np.repeat([1.0, 0.0], [right, documents - right]))
    expected = binomtest(right, documents).proportion_ci(method="wilson")
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((right / documents, *expected), abs=1e-6)


def test_wilsons_interval_holds_its_value_at_any_number_of_documents():
    for documents in range(1, 301):
        for value in (0.0, 1.0):
            interval = scores.wilson(value, documents)
            assert interval.low <= value <= interval.high, documents


def test_no_document_has_no_interval():
    for result in (scores.mean_score(np.array([])), scores.change_interval(np.array([]))):
        assert math.isnan(result.value) and math.isnan(result.low) and math.isnan(result.high)


def test_graded_scores_have_that_of_the_distance_to_the_nearer_end():
    """Scores and what they lack of 1 have intervals that mirror each other, within 0 and 1."""
    values = np.array([0.1, 0.3, 0.2, 0.4, 0.05])
    estimate, mirrored = scores.mean_score(values), scores.mean_score(1 - values)
    ratio = pooled_rate(values, np.ones(5))
    assert ratio is not None and (estimate.low, estimate.high) == pytest.approx((ratio.low, ratio.high))
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - estimate.high, 1 - estimate.low))
    wide = scores.mean_score(np.array([0.0, 0.0, 0.9]))
    assert 0 <= wide.low < 0.3 < wide.high <= 1


def test_two_graded_scores_are_as_wide_as_right_or_wrong_ones():
    assert scores.mean_score(np.array([0.4, 0.6])) == scores.wilson(0.5, 2)


def test_scores_beyond_one_have_a_t_interval():
    values = np.array([7.0, 8.0, 6.0, 9.0])
    estimate = scores.mean_score(values)
    reach = t.ppf(0.975, 3) * values.std(ddof=1) / 2
    assert (estimate.low, estimate.high) == pytest.approx((7.5 - reach, 7.5 + reach))
    assert math.isnan(scores.mean_score(values[:2]).low)
    assert scores.change_interval(values).high == pytest.approx(7.5 + reach)


def test_an_average_adds_up_what_its_tasks_lie_below_and_above():
    estimate = scores.average_score([Interval(0.5, 0.2, 0.6), Interval(0.7, 0.3, 0.8)])
    expected = (0.6, 0.6 - math.hypot(0.3, 0.4) / 2, 0.6 + math.hypot(0.1, 0.1) / 2)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx(expected)
    estimate = scores.average_score([Interval(0.5, 0.2, 0.6), Interval(0.7, 0.3, 0.8)], [30, 10])
    expected = (0.55, 0.55 - math.hypot(0.75 * 0.3, 0.25 * 0.4), 0.55 + math.hypot(0.75 * 0.1, 0.25 * 0.1))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx(expected)


def test_a_change_by_hand():
    """10 documents, 3 better and 1 worse: 4 and 2 of 12 with the two more, 2 / 12 on average."""
    estimate = scores.change_interval(np.repeat([1.0, -1.0, 0.0], [3, 1, 6]))
    reach = scores.Z * math.sqrt((6 / 12 - (2 / 12) ** 2) / 12)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.2, 2 / 12 - reach, 2 / 12 + reach))


@pytest.mark.parametrize(("documents", "shown"), [(5, False), (25, False), (28, True), (150, True)])
def test_equal_scores_of_few_documents_may_hide_ten_points(documents, shown):
    estimate = scores.change_interval(np.zeros(documents))
    assert estimate.value == 0 and estimate.low == -estimate.high
    assert (estimate.high < 0.1) == shown


def power(documents: int, better: float, worse: float) -> float:
    """The probability that McNemar's exact test finds the difference, over all outcomes."""
    counts = range(documents + 1)
    p = np.array([[mcnemar(b, w) if b + w <= documents else 1 for w in counts] for b in counts])
    b, w = np.meshgrid(*[np.arange(documents + 1)] * 2, indexing="ij")
    chance = binom.pmf(b, documents, better) * binom.pmf(w, documents - b, worse / (1 - better))
    return float(chance[(p < 0.05) & (b + w <= documents)].sum())


@pytest.mark.parametrize(("size", "discordant"), [(0.1, 0.2), (0.15, 0.3), (0.2, 0.25)])
def test_documents_for_a_score_have_the_power(size, discordant):
    """Four in five; half as many have much less."""
    count = int(scores.documents_for_score(size, discordant))
    better, worse = (discordant + size) / 2, (discordant - size) / 2
    assert 0.8 <= power(count, better, worse) < 0.9
    assert power(count // 2, better, worse) < 0.62


def test_a_difference_needs_as_many_discordant_documents():
    assert scores.documents_for_score(0.1, 0.02) == scores.documents_for_score(0.1, 0.1)
    assert scores.documents_for_score(0, 0.1) == scores.documents_for_speed(0.1, 1) == math.inf


@pytest.mark.parametrize(("noise", "gain"), [(0.1, 1.1), (0.1, 0.95), (0.3, 1.2)])
def test_documents_for_a_speedup_have_the_power(noise, gain):
    """Simulated runs of so many documents of one length, log-normal times: four in five exclude 1."""
    count = int(scores.documents_for_speed(noise, gain))
    rng = np.random.default_rng(0)
    seconds, tokens = rng.lognormal(-(noise**2) / 2, noise, (3000, count)), np.full(count, 50.0)
    results = [speedup(Paired(np.full(count, gain), tokens, drawn, tokens)) for drawn in seconds]
    shown = np.mean([result is not None and not result.low <= 1 <= result.high for result in results])
    assert 0.77 <= shown <= (0.84 if count > 8 else 1)


def test_texts_of_uneven_length_need_more_documents():
    even, uneven = (scores.documents_for_speed(0.1, 1.1, evenness) for evenness in (1, 0.5))
    assert uneven > even


def test_documents_for_a_mean_by_hand():
    assert scores.documents_for_mean(0.05, 0.2) == math.ceil((1.959964 + 0.841621) ** 2 * 16)
