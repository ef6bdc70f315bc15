"""Intervals of speedups and tests of accuracy, against simulation, enumeration and statsmodels."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import t

from specbench.base import stats
from specbench.base.stats import Paired, average_rate, average_speedup, difference, holm, mcnemar, pooled_rate, speedup

Floats = NDArray[np.float64]
TRUTH = 1.7


def documents(rng: np.random.Generator, count: int, truth: float = TRUTH) -> Paired:
    """Log-normal times of `count` documents; the baseline takes `truth` times as long a token on average."""

    def factor(sigma: float) -> Floats:
        return rng.lognormal(-(sigma**2) / 2, sigma, count)  # mean 1

    base_tokens, tokens = rng.integers(20, 120, count).astype(float), rng.integers(20, 120, count).astype(float)
    slowness = factor(0.3)  # of a document, for both
    return Paired(base_tokens * truth * slowness * factor(0.2), base_tokens, tokens * slowness * factor(0.2), tokens)


def paired(*columns: list[float]) -> Paired:
    return Paired(*(np.array(column, float) for column in columns))


def test_value_by_hand() -> None:
    ratio = speedup(paired([2, 2, 4], [5, 5, 5], [1, 1, 1], [8, 8, 8]))
    assert ratio is not None
    assert ratio.value == pytest.approx((8 / 15) / (3 / 24))  # pooled, not a mean of ratios
    # Without a document: (6 / 10) / (2 / 16) twice, and (4 / 10) / (2 / 16). Their logarithms are log 1.5 apart: a sum
    # of squares of 2/3 log² 1.5, and 2/3 of it is the jackknife's variance. Of the baseline's seconds 64 / 24 documents
    # count.
    factor = 1.5 ** (t.ppf(0.975, 64 / 24 - 1) * 2 / 3)
    assert (ratio.low, ratio.high) == pytest.approx((ratio.value / factor, ratio.value * factor))


def test_equal_times_give_a_sure_one() -> None:
    ratio = speedup(paired([1, 2, 3], [4, 5, 9], [1, 2, 3], [4, 5, 9]))
    assert ratio is not None and (ratio.value, ratio.low, ratio.high) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize("empty", range(4))
def test_none_when_nothing_was_decoded(empty: int) -> None:
    columns = [[1.0] * 3 for _ in range(4)]
    columns[empty] = [0.0] * 3
    assert speedup(paired(*columns)) is None
    assert average_speedup([paired([1], [1], [1], [1]), paired(*columns)]) is None
    assert speedup(paired([], [], [], [])) is None
    assert average_speedup([]) is None


@pytest.mark.parametrize("count", [1, 2])
def test_so_few_documents_have_no_interval(count: int) -> None:
    ratio = speedup(paired([3] * count, [6] * count, [1] * count, [4] * count))
    assert ratio is not None and ratio.value == 2
    assert math.isnan(ratio.low) and math.isnan(ratio.high)


def test_documents_that_end_with_the_prefill_are_no_trouble() -> None:
    ratio = speedup(paired([1, 0, 2], [5, 0, 10], [0.5, 0, 1], [5, 0, 10]))
    assert ratio is not None and (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    alone = speedup(paired([1, 0], [5, 0], [0.5, 0], [5, 0]))
    assert alone is not None and alone.value == 2 and math.isnan(alone.low) and math.isnan(alone.high)


def covered(simulated: list[list[Paired]], truth: float) -> float:
    results = [average_speedup(tasks) for tasks in simulated]
    return float(np.mean([result is not None and result.low <= truth <= result.high for result in results]))


@pytest.mark.parametrize("count", [5, 10, 20, 150])
def test_interval_covers_the_truth(count: int) -> None:
    rng = np.random.default_rng(2)
    assert 0.93 <= covered([[documents(rng, count)] for _ in range(3000)], TRUTH) <= 0.97


@pytest.mark.parametrize("count", [5, 10, 40])
def test_one_long_text_among_short_ones_does_not_make_it_sure(count: int) -> None:
    """Lengths that differ by a factor of ten and more; a text's own speed by a quarter."""
    rng = np.random.default_rng(4)
    runs = []
    for _ in range(3000):
        tokens = rng.lognormal(4, 1, count)
        runs.append([Paired(tokens * TRUTH * rng.lognormal(-0.03125, 0.25, count), tokens, tokens, tokens)])
    assert 0.93 <= covered(runs, TRUTH) <= 0.985


def test_interval_of_an_average_covers_the_truth() -> None:
    rng = np.random.default_rng(3)
    truths, sizes = (1.2, 2.0, 2.5), (60, 90, 70)
    runs = [[documents(rng, n, t) for n, t in zip(sizes, truths, strict=True)] for _ in range(1500)]
    assert 0.93 <= covered(runs, sum(truths) / 3) <= 0.97


def test_pairing_narrows_the_interval() -> None:
    rng = np.random.default_rng(3)
    tokens = np.full(50, 100.0)
    base = rng.gamma(2, 1, 50) + 0.1
    mine = base / 2 * rng.normal(1, 0.01, 50)
    together = speedup(Paired(base, tokens, mine, tokens))
    shuffled = speedup(Paired(base, tokens, rng.permutation(mine), tokens))
    assert together is not None and shuffled is not None
    assert together.value == pytest.approx(shuffled.value)
    assert (together.high - together.low) * 5 < shuffled.high - shuffled.low


def jackknifed(task: Paired) -> tuple[float, float, float]:
    """Value, standard error of its logarithm, and degrees of freedom: one document after the other left out."""
    columns = [column.tolist() for column in (task.base_seconds, task.base_tokens, task.seconds, task.tokens)]

    def value(without: int | None) -> float:
        a, b, c, d = (math.fsum(x for i, x in enumerate(column) if i != without) for column in columns)
        return (a / b) / (c / d)

    count = len(columns[0])
    logs = [math.log(value(i)) for i in range(count)]
    mean = math.fsum(logs) / count
    error = math.sqrt((count - 1) / count * math.fsum((x - mean) ** 2 for x in logs))
    effective = min(math.fsum(column) ** 2 / math.fsum(x * x for x in column) for column in columns)
    return value(None), error, max(1.0, effective - 1)


@pytest.mark.parametrize("count", [3, 9, 30])
def test_interval_is_that_of_documents_left_out(count: int) -> None:
    task = documents(np.random.default_rng(4), count, 2.5)
    value, error, freedom = jackknifed(task)
    ratio = speedup(task)
    assert ratio is not None
    factor = math.exp(t.ppf(0.975, freedom) * error)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((value, value / factor, value * factor))


def test_documents_vary_within_their_workers() -> None:
    """Of two workers one is twice as fast for the method alone: within each, all documents say the same."""
    ones, workers = np.ones(8), np.repeat([1, 2], 4)
    alike = Paired(ones, ones, np.repeat([0.5, 1.0], 4), ones)
    whole, within = speedup(alike), speedup(replace(alike, workers=workers))
    assert whole is not None and within is not None
    assert whole.value == within.value == pytest.approx(8 / 6) and whole.low < 1.2
    assert (within.low, within.high) == pytest.approx((within.value, within.value))


def test_the_error_of_several_workers_is_that_of_each_added_up() -> None:
    task, workers = documents(np.random.default_rng(4), 12, 2.5), np.repeat([7, 9, 2], [3, 4, 5])
    columns = [column.tolist() for column in (task.base_seconds, task.tokens, task.base_tokens, task.seconds)]
    logs = []
    for left in range(12):
        a, b, c, d = (math.log(math.fsum(x for i, x in enumerate(column) if i != left)) for column in columns)
        logs.append(a + b - c - d)
    variance = 0.0
    for mine in (logs[:3], logs[3:7], logs[7:]):
        mean = math.fsum(mine) / len(mine)
        variance += (len(mine) - 1) / len(mine) * math.fsum((x - mean) ** 2 for x in mine)
    effective = min(math.fsum(column) ** 2 / math.fsum(x * x for x in column) for column in columns)
    factor = math.exp(t.ppf(0.975, effective - 3) * math.sqrt(variance))
    ratio = speedup(replace(task, workers=workers))
    assert ratio is not None and ratio.high == pytest.approx(ratio.value * factor)


def test_a_worker_of_one_document_and_a_single_worker_change_nothing() -> None:
    task = documents(np.random.default_rng(4), 9, 2.5)
    for workers in (np.zeros(9, int), np.array([1] + [2] * 8)):
        assert speedup(replace(task, workers=workers)) == speedup(task)


def several_runs(rng: np.random.Generator, runs: int, count: int, sigma: float) -> Paired:
    """`documents` decoded again and again: what runs differ by is the speed of the method, by a factor of each run."""
    task = documents(rng, count)
    columns = [
        np.tile(column, (runs, 1)) for column in (task.base_seconds, task.base_tokens, task.seconds, task.tokens)
    ]
    columns[2] *= rng.lognormal(-(sigma**2) / 2, sigma, (runs, 1)) * rng.lognormal(0, 0.02, (runs, count))
    return Paired(*columns)


def test_the_interval_of_several_runs_leaves_out_a_document_or_a_run() -> None:
    task = several_runs(np.random.default_rng(5), 4, 9, 0.2)
    columns = task.base_seconds, task.base_tokens, task.seconds, task.tokens
    by_document, by_run = (jackknifed(Paired(*(column.sum(axis) for column in columns))) for axis in (0, 1))
    total = by_document[1] ** 2 + by_run[1] ** 2
    freedom = total**2 / (by_document[1] ** 4 / by_document[2] + by_run[1] ** 4 / by_run[2])
    value, factor = by_document[0], math.exp(t.ppf(0.975, freedom) * math.sqrt(total))
    ratio = speedup(task)
    assert ratio is not None and by_run[1] > by_document[1] / 3
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((value, value / factor, value * factor))
    assert speedup(Paired(*(c[:1] for c in columns))) == speedup(Paired(*(c[0] for c in columns)))


def test_runs_by_hand() -> None:
    """Three runs of four equal documents, whose times stand as 1 to 2 to 4: only the runs' error counts."""
    paces = np.array([[1.0], [2.0], [4.0]])
    result = pooled_rate(np.ones((3, 4)), paces * np.ones((3, 4)))
    left = np.log([2 / 6, 2 / 5, 2 / 3])  # a run's documents have one second for a second of the others'
    factor = math.exp(t.ppf(0.975, 49 / 21 - 1) * math.sqrt(2 / 3 * ((left - left.mean()) ** 2).sum()))
    assert result is not None
    assert (result.value, result.low, result.high) == pytest.approx((3 / 7, 3 / 7 / factor, 3 / 7 * factor))
    two = pooled_rate(np.ones((2, 4)), paces[:2] * np.ones((2, 4)))
    assert two is not None and two.value == pytest.approx(2 / 3) and math.isnan(two.low)
    assert pooled_rate(np.zeros((3, 4)), np.zeros((3, 4))) is None


@pytest.mark.parametrize(("runs", "sigma"), [(3, 0.15), (5, 0.03), (8, 0.0)])
def test_the_interval_of_several_runs_covers_the_truth(runs: int, sigma: float) -> None:
    """Runs that differ by 15 % need the runs' error: an interval over documents alone holds the truth too rarely."""
    rng = np.random.default_rng(6)
    simulated = [several_runs(rng, runs, 30, sigma) for _ in range(700)]
    assert 0.93 <= covered([[one] for one in simulated], TRUTH) <= 0.99
    if sigma == 0.15:
        once = [
            Paired(*(c.mean(0) for c in (one.base_seconds, one.base_tokens, one.seconds, one.tokens)))
            for one in simulated
        ]
        assert covered([[one] for one in once], TRUTH) < 0.85


def test_interval_of_an_average_by_hand() -> None:
    """Errors of the values add up as variances; the degrees of freedom are those of Welch and Satterthwaite."""
    tasks = [documents(np.random.default_rng(seed), 10 * seed, seed) for seed in (1, 2, 3)]
    values, logs, freedoms = np.array([jackknifed(task) for task in tasks]).T
    variances = (values * logs / 3) ** 2
    freedom = variances.sum() ** 2 / (variances**2 / freedoms).sum()
    factor = math.exp(t.ppf(0.975, freedom) * math.sqrt(variances.sum()) / values.mean())
    estimate = average_speedup(tasks)
    assert estimate is not None
    expected = (values.mean(), values.mean() / factor, values.mean() * factor)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx(expected)


def test_average_of_one_task_is_its_speedup() -> None:
    task = documents(np.random.default_rng(5), 12)
    assert average_speedup([task]) == speedup(task)


def test_average_is_the_mean_whatever_the_tasks_sizes() -> None:
    small, large = paired([4] * 3, [1] * 3, [1] * 3, [1] * 3), paired(*[[10.0] * 50] * 4)
    estimate = average_speedup([small, large, large])
    assert estimate is not None and (estimate.value, estimate.low, estimate.high) == pytest.approx((2, 2, 2))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), *[st.floats(1e-3, 1e3)] * 3)
def test_units_do_not_matter(seed: int, seconds: float, tokens: float, slower: float) -> None:
    """Other units of time and other tokens leave all as it is; a baseline k times as slow gives k times the speedup."""
    task = documents(np.random.default_rng(seed), 9)
    scaled = Paired(
        task.base_seconds * seconds * slower, task.base_tokens * tokens, task.seconds * seconds, task.tokens * tokens
    )
    one, other = speedup(task), speedup(scaled)
    assert one is not None and other is not None
    expected = (one.value * slower, one.low * slower, one.high * slower)
    assert (other.value, other.low, other.high) == pytest.approx(expected, rel=1e-9)


def test_swapped_roles_turn_the_interval_round() -> None:
    task = documents(np.random.default_rng(6), 40)
    one = speedup(task)
    other = speedup(Paired(task.seconds, task.tokens, task.base_seconds, task.base_tokens))
    assert one is not None and other is not None
    assert 1 / other.value == pytest.approx(one.value)
    assert (1 / other.high, 1 / other.low) == pytest.approx((one.low, one.high), rel=1e-3)


def test_rates_are_pooled_and_averages_are_of_tasks() -> None:
    rounds = np.array([4.0, 2.0, 6.0])
    one, other = (np.array([8.0, 6.0, 16.0]), rounds), (np.array([4.0, 2.0, 6.0]), rounds)
    result, mean = pooled_rate(*one), average_rate([one, other])
    assert result is not None and mean is not None
    assert result.value == pytest.approx(30 / 12) and mean.value == pytest.approx((30 / 12 + 1) / 2)
    assert result.low < result.value < result.high
    # All of the mean's error is the first rate's, and half of it.
    assert (mean.low, mean.high) == pytest.approx(
        [mean.value * math.exp(sign * math.log(result.high / result.value) * 2.5 / 2 / mean.value) for sign in (-1, 1)]
    )
    assert pooled_rate(np.zeros(3), rounds) is None and average_rate([one, (np.zeros(3), rounds)]) is None


def test_resampled_rates_draw_the_same_documents_for_all_methods() -> None:
    """Of two documents one is drawn twice in a quarter of the cases, each."""
    numerators, denominators = np.array([[1.0, 6.0], [3.0, 18.0]]), np.array([[2.0, 3.0], [2.0, 3.0]])
    drawn = stats.resampled_rates(numerators, denominators)
    assert drawn[1] == pytest.approx(3 * drawn[0])
    rates, counts = np.unique(drawn[0].round(9), return_counts=True)
    assert rates == pytest.approx([1 / 2, 7 / 5, 2])
    assert counts / counts.sum() == pytest.approx([0.25, 0.5, 0.25], abs=0.03)
    stats._weights.cache_clear()
    assert (stats.resampled_rates(numerators, denominators) == drawn).all()


def test_mcnemar_is_that_of_statsmodels_for_all_small_tables() -> None:
    tables = pytest.importorskip("statsmodels.stats.contingency_tables")
    for better, worse in itertools.product(range(16), repeat=2):
        if better + worse:
            expected = tables.mcnemar([[3, better], [worse, 2]], exact=True).pvalue
            assert mcnemar(better, worse) == pytest.approx(expected, rel=1e-12), (better, worse)
    assert mcnemar(0, 0) == 1


def test_mcnemar_by_hand() -> None:
    """Of 6 documents that only one solved, 5 or more on one side: 2 (6 + 1) / 2⁶."""
    assert mcnemar(5, 1) == mcnemar(1, 5) == pytest.approx(14 / 64)


def test_right_or_wrong_scores_are_told_apart_by_mcnemar() -> None:
    mine, base = np.array([1, 1, 1, 1, 1, 0, 0, 1.0]), np.array([0, 0, 0, 0, 0, 1, 0, 1.0])
    estimate = difference(mine, base)
    assert (estimate.test, estimate.value, estimate.p) == ("mcnemar", 0.5, pytest.approx(14 / 64))
    swapped = difference(base, mine)
    assert (swapped.value, swapped.p) == (-0.5, estimate.p)


def enumerated(change: list[Fraction]) -> Fraction:
    """How many of all flips of signs move the sum at least as far from zero, as a share."""
    zero = Fraction(0)
    flips = itertools.product((1, -1), repeat=len(change))
    sums = [abs(sum((s * c for s, c in zip(signs, change, strict=True)), zero)) for signs in flips]
    return Fraction(sum(one >= abs(sum(change, zero)) for one in sums), len(sums))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(*[st.integers(0, 8)] * 2), min_size=2, max_size=8))
def test_permutation_test_is_the_full_enumeration_for_few_documents(scores: list[tuple[int, int]]) -> None:
    """Scores in eighths, never right or wrong only."""
    scores = [*scores, (4, 4)]
    mine, base = (np.array(column) / 8 for column in zip(*scores, strict=True))
    estimate = difference(mine, base)
    changes = [Fraction(a - b, 8) for a, b in scores]
    assert estimate.test == "permutation"
    assert estimate.value == pytest.approx(float(sum(changes) / len(changes)))
    assert estimate.p == pytest.approx(float(enumerated(changes)))


def test_permutation_test_of_many_documents_is_near_the_exact_one() -> None:
    """The exact distribution of the sum of 40 changes in eighths, one document after the other."""
    rng = np.random.default_rng(7)
    eighths = rng.integers(-4, 6, 40)
    ways = {0: 1}
    for change in eighths.tolist():
        step: dict[int, int] = {}
        for at, count in ways.items():
            for moved in (at + change, at - change):
                step[moved] = step.get(moved, 0) + count
        ways = step
    exact = sum(count for at, count in ways.items() if abs(at) >= abs(eighths.sum())) / 2**40
    assert 0.001 < exact < 0.9
    base = np.full(40, 0.5)
    spread = math.sqrt(exact * (1 - exact) / 10_000)
    results = [difference(base + eighths / 8, base).p for _ in range(9)]
    assert results[0] == pytest.approx(exact, abs=5 * spread)
    assert len(set(results)) == 1, "a table says the same each time"


def test_ties_count_as_extreme_where_rounding_tells_thirds_apart() -> None:
    """Means of three draws, rounded: 1 less two thirds is not one third less zero, to the last digit."""
    mine = np.array([1, 2, 2, 3, 3, 3, 1, 0] * 5) / 3
    base = np.array([2, 1, 3, 2, 1, 3, 0, 0] * 5) / 3
    assert difference(mine.round(12), base.round(12)).p == difference(mine, base).p
    thirds = np.rint(3 * (mine - base)).astype(int)
    signs = np.random.default_rng(5).choice([-1, 1], (100_000, len(thirds)))
    drawn = np.mean(abs(signs @ thirds) >= abs(thirds.sum()))
    assert difference(mine.round(12), base.round(12)).p == pytest.approx(drawn, abs=0.03)


def test_one_document_with_a_graded_score_tells_nothing() -> None:
    estimate = difference(np.array([0.5]), np.array([0.25]))
    assert (estimate.value, estimate.p, estimate.test) == (0.25, 1, "permutation")


def test_equal_scores_and_none_at_all() -> None:
    scores = np.array([0.5, 0.25])
    assert (difference(scores, scores).value, difference(scores, scores).p) == (0, 1)
    assert math.isnan(difference(np.empty(0), np.empty(0)).value) and difference(np.empty(0), np.empty(0)).p == 1


def test_holm_is_that_of_statsmodels(monkeypatch: pytest.MonkeyPatch) -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    monkeypatch.setattr("gc.collect", lambda: 0)  # it collects garbage at each call
    rng = np.random.default_rng(9)
    for _ in range(300):
        ps = (rng.random(rng.integers(1, 12)) ** 4).round(2).tolist()  # small ones, large ones and ties
        assert holm(ps) == pytest.approx(multitest.multipletests(ps, method="holm")[1].tolist(), rel=1e-12), ps


def test_holm_by_hand() -> None:
    """Of three: 3 × 0.01, 2 × 0.03, and 0.04 raised to the one before; what is unknown is not counted."""
    assert holm([0.04, math.nan, 0.01, 0.03]) == pytest.approx([0.06, math.nan, 0.03, 0.06], nan_ok=True)
    assert holm([]) == [] and holm([0.5, 0.6]) == [1, 1]
