"""CoSpec's reward: groups by hand, invariants, and a second implementation from whole traces in numpy."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench_extras.cospec.reward import (
    LARGEST_SURPRISAL,
    Decisions,
    Reward,
    Rollout,
    decision_advantages,
    group_advantages,
    spans,
    terms,
    total,
)

NOTHING = Reward(correct=0, length=0, surprisal=0, rejection=0, all_wrong=1, rebalance=False, epsilon=0)
FULL = Reward(correct=1, length=0.1, surprisal=0.5, rejection=0.2, all_wrong=0.5, rebalance=True, epsilon=1e-6)

# Blocks of 8. The first keeps 2 and 4 and ends at 5, the second keeps its only mismatch to the end, the third has none,
# the fourth ends at its first mismatch.
KEPT_TWO = Decisions((2, 4, 5), 5, True, (1.0, 3.0, 2.0))
KEPT_ALL = Decisions((6,), 9, False, (0.5,))
MATCHED = Decisions((), 9, False, ())
AT_ONCE = Decisions((3,), 3, True, (7.0,))
ROUNDS = (KEPT_TWO, MATCHED, KEPT_ALL, AT_ONCE)


def right(*rounds: Decisions) -> Rollout:
    return Rollout(True, rounds)


def wrong(*rounds: Decisions) -> Rollout:
    return Rollout(False, rounds)


# By hand


def test_spans_and_terms_by_hand():
    assert spans(right(*ROUNDS)) == spans(wrong(*ROUNDS)) == [3, 0, 3, 0]  # 5 - 2, none, 9 - 6, 3 - 3
    assert terms(right(*ROUNDS), FULL) == pytest.approx([0.3, 0.3, 0.3, 0.3, 0.0])
    assert terms(wrong(*ROUNDS), FULL) == pytest.approx([-0.5, -1.5, -0.2, -0.25, -0.2])
    assert total(right(*ROUNDS), FULL) == pytest.approx(2.2)
    assert total(wrong(*ROUNDS), FULL) == pytest.approx(-2.65)


@pytest.mark.parametrize(
    "coefficient, when_right, when_wrong",
    [
        ("correct", [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
        ("length", [3, 3, 3, 3, 0], [0, 0, 0, 0, 0]),
        ("surprisal", [0, 0, 0, 0, 0], [-1, -3, 0, -0.5, 0]),
        ("rejection", [0, 0, 0, 0, 0], [0, 0, -1, 0, -1]),
    ],
)
def test_each_coefficient_alone(coefficient, when_right, when_wrong):
    alone = replace(NOTHING, **{coefficient: 2.0})
    assert terms(right(*ROUNDS), alone) == [2 * term for term in when_right]
    assert terms(wrong(*ROUNDS), alone) == [2 * term for term in when_wrong]
    assert total(right(*ROUNDS), alone) == 2 * (sum(when_right) + (coefficient == "correct"))
    assert total(wrong(*ROUNDS), alone) == 2 * sum(when_wrong)


def test_a_group_that_is_right_throughout():
    """Returns 2.2, 1.3 and 1: mean 1.5, squares 0.49 + 0.04 + 0.25."""
    group = [right(*ROUNDS), right(KEPT_ALL), right(MATCHED)]
    std = math.sqrt(0.78 / 3)
    for rebalance in (True, False):
        reward = replace(FULL, epsilon=0.1, rebalance=rebalance, all_wrong=0)
        assert group_advantages(group, reward) == pytest.approx([x / (std + 0.1) for x in (0.7, -0.2, -0.5)])


def test_a_group_that_is_wrong_throughout_counts_less():
    """Returns -2.65, -0.25 and 0: the worst is -1.683 from the mean of -0.9667."""
    group = [wrong(*ROUNDS), wrong(KEPT_ALL), wrong(MATCHED)]
    mean = -2.9 / 3
    std = math.sqrt(((-2.65 - mean) ** 2 + (-0.25 - mean) ** 2 + mean**2) / 3)
    for weight in (0.5, 1.0, 0.0):
        result = group_advantages(group, replace(FULL, all_wrong=weight, epsilon=0))
        assert result == pytest.approx([weight * (x - mean) / std for x in (-2.65, -0.25, 0)])


MIXED = [right(KEPT_TWO), wrong(AT_ONCE), right(MATCHED), wrong(KEPT_ALL, AT_ONCE)]


def test_a_mixed_group_as_it_is():
    """Returns 1.9, -0.2, 1 and -0.45: mean 0.5625."""
    result = group_advantages(MIXED, replace(FULL, rebalance=False, epsilon=0))
    off = [1.3375, -0.7625, 0.4375, -1.0125]
    std = math.sqrt(sum(x * x for x in off) / 4)
    assert result == pytest.approx([x / std for x in off])


def test_a_mixed_group_rebalanced():
    """κ = 0.65 / 2.9; the substituted returns sum to 0, so they are the deviations. w plays no part."""
    substituted = [1.9 * 0.65 / 2.9, -0.2, 1 * 0.65 / 2.9, -0.45]
    assert sum(substituted) == pytest.approx(0)
    std = math.sqrt(sum(x * x for x in substituted) / 4)
    assert group_advantages(MIXED, replace(FULL, epsilon=0)) == pytest.approx([x / std for x in substituted])
    result = group_advantages(MIXED, replace(FULL, epsilon=3, all_wrong=0))
    assert result == pytest.approx([x / (std + 3) for x in substituted])


@pytest.mark.parametrize("wrong_one", (wrong(MATCHED), wrong()))
def test_a_mixed_group_with_nothing_to_balance_stays_as_it_is(wrong_one):
    """κ would be 0, and no rollout would be told from another."""
    assert group_advantages([right(MATCHED), wrong_one], replace(FULL, epsilon=0)) == pytest.approx([1, -1])
    unpaid = replace(FULL, correct=0, epsilon=0)  # and here it would be divided by 0
    assert group_advantages([right(MATCHED), wrong(KEPT_ALL)], unpaid) == pytest.approx([1, -1])


def test_decisions_of_a_right_rollout_share_by_span():
    """Spans 3, 3, 3, 3 and 0 over five decisions: their mean is 2.4."""
    group = [right(*ROUNDS), wrong(*ROUNDS)]
    reward = replace(FULL, epsilon=0)  # rebalanced to 2.65 and -2.65
    good, bad = decision_advantages(group, reward)
    assert good == pytest.approx([1.25, 1.25, 1.25, 1.25, 0])
    assert bad == pytest.approx([-x / 0.53 for x in (0.5, 1.5, 0.2, 0.25, 0.2)])  # their mean is 2.65 / 5


def test_spans_count_by_decision_not_by_round():
    """4 is kept and the end comes at 9 (span 5, two decisions); 8 is kept alone (span 1): mean (5 + 5 + 1) / 3."""
    two, one = Decisions((4, 7), 9, False, (0.0, 0.0)), Decisions((8,), 9, False, (0.0,))
    good, _ = decision_advantages([right(two, one), wrong()], replace(FULL, epsilon=0))
    assert good == pytest.approx([15 / 11, 15 / 11, 3 / 11])


def test_parts_that_are_all_zero_are_alike():
    group = [right(AT_ONCE, AT_ONCE), wrong(AT_ONCE, KEPT_ALL)]
    good, bad = decision_advantages(group, replace(NOTHING, correct=1))
    assert good == pytest.approx([1, 1]) and bad == pytest.approx([-1, -1])


@pytest.mark.parametrize("make", (right, wrong))
def test_returns_that_do_not_differ_say_nothing(make):
    for group in ([make(*ROUNDS)], [make(*ROUNDS)] * 5, [make(MATCHED)] * 3, [make()] * 2):
        for epsilon in (0.0, 1e-6):
            reward = replace(FULL, epsilon=epsilon)
            assert group_advantages(group, reward) == [0] * len(group)
            assert decision_advantages(group, reward) == [[0] * len(terms(one, reward)) for one in group]
    assert group_advantages([], FULL) == decision_advantages([], FULL) == []


def test_returns_that_are_equal_but_for_rounding_say_nothing():
    """0.1 + 0.2 + 0.3 in another order is another float; dividing by a std of 1e-16 would make a signal of that."""
    orders = ((0.1, 0.2, 0.3), (0.3, 0.2, 0.1), (0.2, 0.3, 0.1))
    group = [wrong(Decisions((1, 2, 3), 9, False, order)) for order in orders]
    assert len({sum(order) for order in orders}) > 1
    assert group_advantages(group, replace(NOTHING, surprisal=1)) == [0, 0, 0]


def test_rounds_without_mismatches_and_no_rounds_have_no_decisions():
    group = [right(MATCHED, MATCHED), wrong(MATCHED), right()]
    assert [terms(one, FULL) for one in group] == [[], [], []]
    assert [total(one, FULL) for one in group] == [1, 0, 1]
    assert decision_advantages(group, FULL) == [[], [], []]


def test_an_infinite_surprisal_is_a_large_one():
    ruled_out = Decisions((1, 2), 9, False, (math.inf, 1.0))
    assert terms(wrong(ruled_out), FULL) == [-0.5 * LARGEST_SURPRISAL, -0.5]
    assert terms(wrong(ruled_out), replace(FULL, surprisal=0)) == [0, 0], "0 times infinity is not a number"
    for group in ([wrong(ruled_out), right(MATCHED)], [wrong(ruled_out), wrong(ruled_out), wrong(MATCHED)]):
        assert all(math.isfinite(x) for advantage in decision_advantages(group, FULL) for x in advantage)
        assert all(math.isfinite(x) for x in group_advantages(group, FULL))
    rejected = Decisions((1,), 1, True, (math.inf,))
    assert terms(wrong(rejected), FULL) == [-0.2], "what a rejected token would have cost does not matter"


@pytest.mark.parametrize(
    "mismatches, emitted, rejected, surprisals",
    [
        ((2, 2), 9, False, (1.0, 1.0)),
        ((4, 2), 9, False, (1.0, 1.0)),
        ((0,), 9, False, (1.0,)),
        ((2,), 9, False, ()),
        ((2,), 9, True, (1.0,)),  # rejected there, yet the round goes on
        ((), 9, True, ()),
        ((7,), 5, False, (1.0,)),
        ((2,), 9, False, (math.nan,)),
    ],
)
def test_decisions_that_contradict_themselves_are_refused(mismatches, emitted, rejected, surprisals):
    with pytest.raises(ValueError):
        Decisions(mismatches, emitted, rejected, surprisals)


# A second implementation, from whole traces


@dataclass(frozen=True)
class Trace:
    """A round as it was decoded: for each of K positions whether the two differ, the action there, and -log p(d)."""

    differ: np.ndarray
    keep: np.ndarray
    surprisal: np.ndarray

    @property
    def decisions(self) -> Decisions:
        """What a trainer hands on: it stops reading at the first rejected mismatch."""
        reached, log, rejected, end = [], [], False, len(self.differ) + 1
        for i, differs in enumerate(self.differ, 1):
            if differs:
                reached.append(i)
                log.append(float(self.surprisal[i - 1]))
                if not self.keep[i - 1]:
                    rejected, end = True, i
                    break
        return Decisions(tuple(reached), end, rejected, tuple(log))


def traces(rng: np.random.Generator) -> list[tuple[bool, list[Trace]]]:
    results, luck, alike, kept = [], rng.choice([0.0, 0.5, 1.0]), rng.random(), rng.random()
    for _ in range(rng.integers(1, 7)):
        rounds = []
        for _ in range(rng.integers(0, 5)):
            block = int(rng.integers(1, 10))
            surprisal = np.where(rng.random(block) < 0.03, np.inf, rng.exponential(2, block))
            rounds.append(Trace(rng.random(block) > alike, rng.random(block) < kept, surprisal))
        results.append((bool(rng.random() < luck), rounds))
    return results


def slow(group: list[tuple[bool, list[Trace]]], reward: Reward) -> tuple[list[float], np.ndarray, list[np.ndarray]]:
    """Returns, advantages of the rollouts, and those of their decisions; all positions, masks instead of lists."""
    totals, shares = [], []
    for correct, rounds in group:
        earned, sizes = [np.zeros(0)], [np.zeros(0)]
        for trace in rounds:
            at = np.arange(1, len(trace.differ) + 1)
            rejections = at[trace.differ & ~trace.keep]
            k = rejections.min() if rejections.size else np.inf  # the first rejected mismatch (sentinel: infinity)
            emitted = min(k, len(at) + 1)
            effective = trace.differ & (at <= emitted)
            if not effective.any():
                continue
            if correct:
                span = emitted - at[trace.differ].min()
                earned.append(np.full(effective.sum(), reward.length * span))
                sizes.append(np.full(effective.sum(), float(span)))
            else:
                risk = np.where(at < k, -reward.surprisal * np.minimum(trace.surprisal, LARGEST_SURPRISAL), 0)
                penalty = (risk - reward.rejection * (at == k))[effective]
                earned.append(penalty)
                sizes.append(np.abs(penalty))
        totals.append(float(reward.correct * correct + np.concatenate(earned).sum()))
        shares.append(np.concatenate(sizes))
    returns, right = np.array(totals), np.array([correct for correct, _ in group])
    gain, loss = returns[right].sum(), np.abs(returns[~right]).sum()
    if reward.rebalance and gain > 0 and loss > 0:
        returns = np.where(right, returns * (loss / gain), returns)
    spread = returns.std()
    advantages = np.zeros(len(returns)) if spread < 1e-12 else (returns - returns.mean()) / (spread + reward.epsilon)
    if not right.any():
        advantages = advantages * reward.all_wrong
    each = [
        advantage * (size / size.mean() if size.any() else np.ones(len(size)))
        for advantage, size in zip(advantages, shares, strict=True)
    ]
    return totals, advantages, each


@pytest.mark.parametrize("rebalance", (False, True))
def test_a_second_implementation_agrees_on_random_groups(rebalance):
    rng, kinds = np.random.default_rng(9), set()
    for _ in range(200):
        group = traces(rng)
        coefficients = np.where(rng.random(4) < 0.2, 0, rng.random(4))
        reward = Reward(*(float(x) for x in coefficients), float(rng.random()), rebalance, 10.0 ** -rng.integers(1, 9))
        ours = [Rollout(correct, tuple(trace.decisions for trace in rounds)) for correct, rounds in group]
        totals, advantages, each = slow(group, reward)
        assert [total(one, reward) for one in ours] == pytest.approx(totals)
        assert group_advantages(ours, reward) == pytest.approx(advantages.tolist(), abs=1e-9)
        result = decision_advantages(ours, reward)
        for one, expected in zip(result, each, strict=True):
            assert one == pytest.approx(expected.tolist(), abs=1e-9)
        kinds.add((any(one.correct for one in ours), all(one.correct for one in ours), bool(np.any(advantages))))
    assert len(kinds) == 6, "right, wrong and mixed groups, with and without a difference"


# What must hold of any group


@st.composite
def rounds(draw) -> Decisions:
    block = draw(st.integers(1, 12))
    reached = tuple(sorted(draw(st.sets(st.integers(1, block), max_size=5))))
    rejected = bool(reached) and draw(st.booleans())
    facts = st.floats(0, 30) | st.just(math.inf)
    surprisals = tuple(draw(facts) for _ in reached)
    return Decisions(reached, reached[-1] if rejected else block + 1, rejected, surprisals)


ROLLOUTS = st.builds(Rollout, st.booleans(), st.lists(rounds(), max_size=4).map(tuple))
REWARDS = st.builds(
    Reward,
    correct=st.floats(0.1, 2),
    length=st.floats(0, 1),
    surprisal=st.floats(0.01, 1),
    rejection=st.floats(0.01, 1),
    all_wrong=st.floats(0, 1),
    rebalance=st.booleans(),
    epsilon=st.floats(1e-8, 0.1),
)


@given(st.lists(ROLLOUTS, max_size=8), REWARDS)
@settings(max_examples=150, deadline=None)
def test_what_holds_of_any_group(group, reward):
    advantages, divided = group_advantages(group, reward), decision_advantages(group, reward)
    assert len(advantages) == len(divided) == len(group)
    assert sum(advantages) == pytest.approx(0, abs=1e-6)
    assert all(abs(advantage) <= math.sqrt(len(group)) for advantage in advantages)
    for one, advantage, parts in zip(group, advantages, divided, strict=True):
        assert len(parts) == sum(len(round.mismatches) for round in one.rounds)
        assert all(math.isfinite(part) and part * advantage >= 0 for part in parts)
        if parts:
            assert sum(parts) / len(parts) == pytest.approx(advantage)
    kinds = {one.correct for one in group}
    for kind in kinds:  # no text that earned less is preferred to one of its kind that earned more
        ranked = sorted(
            (total(one, reward), a) for one, a in zip(group, advantages, strict=True) if one.correct == kind
        )
        assert all(a <= b + 1e-9 for (_, a), (_, b) in itertools.pairwise(ranked))
    if len(kinds) == 2:
        lowest = min(a for one, a in zip(group, advantages, strict=True) if one.correct)
        assert lowest >= max(a for one, a in zip(group, advantages, strict=True) if not one.correct)
        harmful = any(total(one, reward) < 0 for one in group)
        if reward.rebalance and harmful:  # the mean is 0, so that signs are kept
            for one, advantage in zip(group, advantages, strict=True):
                assert advantage >= -1e-6 if one.correct else advantage <= 1e-6
