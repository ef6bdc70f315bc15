"""Acceptance of several drafts at one position, against brute force, a linear program, and values by hand."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from specbench_extras.multidraft import transport
from specbench_extras.multidraft.transport import among_first, optimal, recursive, single

EXACT = 1e-11
KINDS = pytest.mark.parametrize("replacement", (True, False), ids=("with", "without"))


def distributions(random: np.random.Generator, size: int, concentration: float):
    """p and q [V]; now and then one of them is without a token."""
    p, q = (random.dirichlet(np.full(size, concentration)) for _ in range(2))
    for one in (p, q):
        if random.random() < 0.3:
            one[random.integers(size)] = 0
        if one.sum() == 0:
            one[0] = 1
        one /= one.sum()
    return p, q


def ordered_draws(q, count, replacement):
    """Sequences of drafts and their chances; without replacement no more than there are tokens."""
    count = count if replacement else min(count, np.count_nonzero(q))
    result = {}
    for drawn in itertools.product(np.flatnonzero(q), repeat=count):
        if replacement:
            result[drawn] = float(np.prod(q[list(drawn)]))
        elif len(set(drawn)) == count:
            left = [sum(q[j] for j in np.flatnonzero(q) if j not in drawn[:i]) for i in range(count)]
            result[drawn] = float(np.prod([q[token] / mass for token, mass in zip(drawn, left, strict=True)]))
    assert sum(result.values()) == pytest.approx(1)
    return result


def by_subsets(p, q, count, replacement):
    """min over all H of p(H) + 1 - P(all drafts in H)."""
    draws = ordered_draws(q, count, replacement)
    subsets = itertools.chain.from_iterable(itertools.combinations(range(len(p)), n) for n in range(len(p) + 1))
    return min(p[list(h)].sum() + 1 - sum(c for drawn, c in draws.items() if set(drawn) <= set(h)) for h in subsets)


def by_program(p, q, count, replacement):
    """The linear program itself: how much of each set of drafts goes to which of its tokens, none above p."""
    sets: dict[tuple[int, ...], float] = {}
    for drawn, chance in ordered_draws(q, count, replacement).items():
        key = tuple(sorted(set(drawn)))
        sets[key] = sets.get(key, 0.0) + chance
    flows = [(i, token) for i, key in enumerate(sets) for token in key]
    from_set = np.array([[float(i == j) for j, _ in flows] for i in range(len(sets))])
    to_token = np.array([[float(token == v) for _, token in flows] for v in range(len(p))])
    limits = np.concatenate([list(sets.values()), p])
    return -optimize.linprog(-np.ones(len(flows)), np.vstack([from_set, to_token]), limits, method="highs").fun


def by_enumeration(p, q, count):
    """Recursive rejection without replacement: each token drawn, each outcome."""
    if not count or q.sum() == 0:
        return 0.0
    left = np.maximum(p - q, 0)
    after = left / left.sum() if left.sum() else p
    total = 0.0
    for token in np.flatnonzero(q):
        passes, others = min(1.0, p[token] / q[token]), np.where(np.arange(len(q)) == token, 0, q)
        others = others / others.sum() if others.sum() else others
        total += q[token] * (passes + (1 - passes) * by_enumeration(after, others, count - 1))
    return total


def with_replacement(p, q, count):
    overlap = np.minimum(p, q).sum()
    left = np.maximum(p - q, 0)
    if count == 1 or left.sum() == 0:
        return overlap if left.sum() else 1.0
    return overlap + (1 - overlap) * with_replacement(left / left.sum(), q, count - 1)


@KINDS
@pytest.mark.parametrize("count", (1, 2, 3))
def test_the_best_rule_by_subsets_and_by_a_linear_program(count, replacement):
    random = np.random.default_rng(count)
    for size, concentration in itertools.product((2, 3, 4, 5), (0.2, 1.0, 4.0)):
        for _ in range(4):
            p, q = distributions(random, size, concentration)
            value = optimal(p, q, count, replacement)
            assert value == pytest.approx(by_subsets(p, q, count, replacement), abs=EXACT)
            if size <= 4:
                assert value == pytest.approx(by_program(p, q, count, replacement), abs=1e-7)


@pytest.mark.parametrize("count", (1, 2, 3))
def test_recursive_rejection_by_enumeration(count):
    random = np.random.default_rng(count)
    for size, concentration in itertools.product((2, 3, 4, 6), (0.2, 1.0, 4.0)):
        for _ in range(6):
            p, q = distributions(random, size, concentration)
            value = recursive(p, q, count, False)
            assert value == pytest.approx((by_enumeration(p, q, count), 0), abs=EXACT)
            assert recursive(p, q, count, True) == pytest.approx((with_replacement(p, q, count), 0), abs=EXACT)


def chance_inside(q, size, count):
    """P(all drafts among the first `size` tokens) by summing over ordered draws, as the paper writes it."""
    total = 0.0
    for drawn in itertools.permutations(range(size), count):
        mass, chance = 1.0, 1.0
        for token in drawn:
            chance *= q[token] / mass
            mass -= q[token]
        total += chance
    return total


@pytest.mark.parametrize("largest", (0.0, 0.5, 0.97))
def test_all_drafts_among_the_first_tokens(largest):
    """With light tokens alone, with heavy ones, and with one that has nearly all; in any order."""
    random = np.random.default_rng(0)
    q = random.dirichlet(np.full(60, 1.0)) * (1 - largest)
    q[17] += largest
    assert (q < transport.HEAVY).sum() > 40 and ((q >= transport.HEAVY).any() or largest == 0)
    for count in (1, 2, 3):
        result = among_first(q, count)
        for size in (1, 2, 3, 10, 18, 25, 60):
            assert result[size - 1] == pytest.approx(chance_inside(q, size, count), abs=EXACT)


def test_a_token_with_nearly_everything_keeps_the_digits():
    """Drafts of 1 - 3e-13, 2e-13, 1e-13: the first two are the first two tokens with chance 2/3."""
    q = np.array([1 - 3e-13, 2e-13, 1e-13])
    assert among_first(q, 2) == pytest.approx([0, 2 / 3, 1], abs=1e-3)  # 1 - 3e-13 itself has three digits of 3e-13
    p = np.array([0.5, 0.25, 0.25])
    assert recursive(p, q, 2, False).value == pytest.approx(by_enumeration(p, q, 2), abs=1e-9)
    assert recursive(p, q, 3, False).value == pytest.approx(1, abs=1e-9)


def test_by_hand():
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.2, 0.2, 0.6])
    assert single(p, q) == pytest.approx(0.4)
    # Two drafts, H = {2}: 0 + 1 - P(both are 2).
    assert optimal(p, q, 2, True) == pytest.approx(1 - 0.36)
    assert optimal(p, q, 2, False) == pytest.approx(1)
    # First: 0.4 passes. 2 is rejected (0.6), p stays, and q is 1/2 1/2: it passes for certain; with replacement, 0.4.
    assert recursive(p, q, 2, False).value == pytest.approx(1)
    assert recursive(p, q, 2, True).value == pytest.approx(0.4 + 0.6 * 0.4)
    # Where q's tokens run out, no more can be accepted than p has on them.
    p, q = np.array([0.3, 0.3, 0.4]), np.array([0.5, 0.5, 0.0])
    for count in (2, 3):
        assert optimal(p, q, count, False) == pytest.approx(0.6)
        assert recursive(p, q, count, False).value == pytest.approx(0.6)
    one = np.array([0.0, 1.0, 0.0])
    assert recursive(p, one, 2, False) == (pytest.approx(0.3), 0) and optimal(p, one, 3, False) == pytest.approx(0.3)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(2, 200), st.sampled_from([0.03, 0.3, 3.0]))
def test_order_of_the_figures(seed, size, concentration):
    """One draft ≤ recursive rejection ≤ the best rule ≤ 1, more drafts never worse, p = q always accepted."""
    p, q = distributions(np.random.default_rng(seed), size, concentration)
    slack = 1e-9
    for replacement in (True, False):
        before = best_before = single(p, q)
        for count in (1, 2, 3):
            result, best = recursive(p, q, count, replacement), optimal(p, q, count, replacement)
            if count == 1:
                assert result.value == pytest.approx(single(p, q)) and best == pytest.approx(single(p, q))
            assert result.value + result.left_out >= before - slack
            assert best >= best_before - slack
            assert result.value <= best + slack and best <= 1 + slack
            before, best_before = result.value, best
        for count in (1, 2, 3):
            assert optimal(q, q, count, replacement) == pytest.approx(1)
            assert recursive(q, q, count, replacement).value == pytest.approx(1)
    assert optimal(p, q, 3, False) >= optimal(p, q, 3, True) - slack


@pytest.mark.long
@pytest.mark.parametrize("firsts", (4096, 30))
def test_what_is_left_out_is_told(monkeypatch, firsts):
    """Of unlikely seconds there are bounds: the truth is between what is found and that plus what may be missing."""
    monkeypatch.setattr(transport, "FIRSTS", firsts)
    random = np.random.default_rng(4)
    p, q = (random.dirichlet(np.full(80, 0.4)) for _ in range(2))
    q = (q + p) / 2
    truth = by_enumeration(p, q, 3)
    widths = []
    for most in (2, 5, 10, 20, 80):
        value, left_out = recursive(p, q, 3, False, most)
        assert value - EXACT <= truth <= value + left_out + EXACT
        widths.append(left_out)
    assert widths == sorted(widths, reverse=True) and widths[0] > 1e-3
    if firsts > 80:
        assert widths[-1] < EXACT and value == pytest.approx(truth, abs=EXACT)


def test_more_drafts_than_are_known_are_refused():
    p = np.full(6, 1 / 6)
    for call in (optimal, recursive):
        with pytest.raises(ValueError, match="4 drafts without replacement: 1 to 3 are known"):
            call(p, p, 4, False)


def test_wrong_formulas_are_found(monkeypatch):
    random = np.random.default_rng(9)
    p, q = random.dirichlet(np.ones(5)), random.dirichlet(np.ones(5))
    right = by_subsets(p, q, 3, False)
    assert optimal(p, q, 3, False) == pytest.approx(right, abs=EXACT)
    monkeypatch.setattr(transport, "pairs", lambda q: np.zeros(len(q)))
    assert abs(optimal(p, q, 3, False) - right) > 1e-3
    monkeypatch.setattr(transport, "among_first", transport.among_first_replaced)
    assert abs(optimal(p, q, 2, False) - by_subsets(p, q, 2, False)) > 1e-3
