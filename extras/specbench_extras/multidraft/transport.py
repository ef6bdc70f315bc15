"""Acceptance of several drafts at one position: what recursive rejection reaches, and the best possible.

Each position has the target's distribution p and the draft's q, arrays [V] that sum to 1; k tokens are drawn from q,
with or without replacement. Acceptance is the probability that the emitted token, which follows p, is one of them. All
figures are expectations over the drafts, and exact up to rounding unless stated otherwise.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.base.stats import Floats

MOST = 3  # drafts; no formula here is fast for more
FIRSTS = 4096  # first drafts for which a third draft is considered
HEAVY = 1 / 32  # draft probabilities from this on are added up pair by pair; there are few of them
NODES, WEIGHTS = np.polynomial.laguerre.laggauss(16)


class Expected(NamedTuple):
    """An acceptance between `value` and `value + left_out`."""

    value: float
    left_out: float


def single(p: Floats, q: Floats) -> float:
    """The acceptance of one draft: Σ min(p, q). No rule is better (Leviathan et al., arXiv 2211.17192)."""
    return float(np.minimum(p, q).sum())


def optimal(p: Floats, q: Floats, drafts: int, replacement: bool) -> float:
    """The best acceptance that a lossless rule can reach with so many drafts (arXiv 2502.18779).

    A rule is a transport from sets of drafts to emitted tokens, and the best rule is a maximum flow. The minimum cut is
    min over H ⊆ V of p(H) + 1 - P(all drafts ∈ H). One of the minimal H holds the tokens with the largest q/p: where a
    token of smaller q/p may stay in H, a token of larger q/p may be added, since P grows faster the more is in H. So
    only the prefixes of one order need to be checked. Raises ValueError for more than MOST drafts without replacement.
    """
    drawn = np.flatnonzero(q > 0)
    with np.errstate(over="ignore"):
        order = drawn[np.argsort(p[drawn] / q[drawn], kind="stable")]
    inside = among_first_replaced(q[order], drafts) if replacement else among_first(q[order], drafts)
    return float(min(1.0, (np.cumsum(p[order]) + 1 - inside).min()))


def among_first_replaced(q: Floats, drafts: int) -> Floats:
    """With replacement: the probability that all drafts are among the first 1, 2, … tokens."""
    return np.cumsum(q) ** drafts


def among_first(q: Floats, drafts: int) -> Floats:
    """Without replacement: the probability that all drafts are among the first 1, 2, … tokens of q (all above 0).

    Drafts are the first arrivals of a race in which token i arrives at rate q_i. The first arrival outside of H comes
    at rate r = 1 - q(H), so the probability of fewer than k arrivals from H before it is
    r ∫ exp(-t) (1 + e_1 + … + e_(k-1)) dt, with the elementary symmetric polynomials e_n of exp(q_i t) - 1, i ∈ H. The
    integral is Σ q/(1 - q) for e_1, and `pairs` for e_2.
    """
    count = min(drafts, len(q))
    if not 1 <= count <= MOST:
        raise ValueError(f"{drafts} drafts without replacement: 1 to {MOST} are known")
    outside = np.append(np.cumsum(q[:0:-1])[::-1], 0.0)
    fewer = np.ones(len(q))
    if count > 1:
        fewer += np.cumsum(q / rest(q))
    if count > 2:
        fewer += pairs(q)
    inside = 1 - outside * fewer
    inside[: count - 1] = 0.0
    inside[-1] = 1.0
    return inside


def rest(q: Floats) -> Floats:
    """1 - q_i, with full precision even if one token has nearly all probability; 1 if it has all of it."""
    others, top = 1 - q, int(q.argmax())
    others[top] = q[:top].sum() + q[top + 1 :].sum()
    return np.where(others > 0, others, 1.0)


def pairs(q: Floats) -> Floats:
    """∫ exp(-t) e_2(t) dt of the first 1, 2, … tokens: the sum over pairs i < j of q_i q_j (1 + r_ij) / (r_i r_j r_ij).

    r is the probability of all other tokens: r_i = 1 - q_i and r_ij = 1 - q_i - q_j. Pairs with a heavy token are added
    up one by one. For the others the integral is done by Gauss-Laguerre quadrature, in which products of sums replace
    sums over pairs; exponents are at most 2 · HEAVY there, and 16 nodes are exact up to rounding.
    """
    others, n = rest(q), np.arange(len(q))
    added = np.zeros(len(q))  # by each token, paired with those before it
    heavy = np.flatnonzero(q >= HEAVY)
    first, second = np.repeat(heavy, len(q)), np.tile(n, len(heavy))
    once = (q[second] < HEAVY) | (first < second)
    first, second = first[once], second[once]
    both = pair_rest(q, others, first, second)
    np.add.at(
        added, np.maximum(first, second), q[first] * q[second] * (1 + both) / (others[first] * others[second] * both)
    )
    light = np.expm1(np.where(q < HEAVY, q, 0.0) * NODES[:, None])  # [nodes, V]
    before = np.cumsum(light, 1) - light
    return np.cumsum(added + WEIGHTS @ (light * before))


def pair_rest(q: Floats, others: Floats, first: NDArray[np.intp], second: NDArray[np.intp]) -> Floats:
    """1 - q_i - q_j of pairs of different tokens, with full precision; 1 if nothing is left."""
    left_over = others[first] - q[second]
    swap = q[second] > q[first]
    left_over[swap] = (others[second] - q[first])[swap]
    if len(q) > 1:
        top = np.argsort(q)[-2:]
        left = np.delete(q, top).sum()
        left_over[np.isin(first, top) & np.isin(second, top)] = left
    return np.where(left_over > 0, left_over, 1.0)


def recursive(p: Floats, q: Floats, drafts: int, replacement: bool, most: int = 64) -> Expected:
    """The acceptance of recursive rejection sampling with so many drafts (`engine.trees.recursive_test`).

    Without replacement, second drafts that are not among the `most` likeliest are bounded, not computed: `value` is the
    lower bound. Raises ValueError for more than MOST drafts without replacement.
    """
    if not 1 <= drafts <= MOST and not replacement:
        raise ValueError(f"{drafts} drafts without replacement: 1 to {MOST} are known")
    if replacement or drafts == 1:
        return Expected(_replaced(p, q, drafts), 0.0)
    refused = np.maximum(q - p, 0.0)  # [V]: the probability that the first draft is this token and is rejected
    left = np.maximum(p - q, 0.0)
    total = refused.sum()
    if total <= 0 or left.sum() <= 0:  # p equals q up to rounding
        return Expected(1.0, 0.0)
    later = _Later(left / left.sum(), q)
    firsts = np.flatnonzero(refused)
    scale = rest(q)[firsts]
    if np.count_nonzero(q) == 1:  # there is no second draft
        return Expected(float(1 - total), 0.0)
    value = float(1 - total + refused[firsts] @ later.second(scale))
    if drafts == 2 or np.count_nonzero(q) < 3:
        return Expected(value, 0.0)
    third = later.third(refused, most)
    return Expected(value + third.value, third.left_out)


def _replaced(p: Floats, q: Floats, drafts: int) -> float:
    refused = 1.0
    for _ in range(drafts):
        overlap = np.minimum(p, q).sum()
        refused *= max(1 - overlap, 0.0)
        left = np.maximum(p - q, 0.0)
        if refused == 0 or left.sum() == 0:
            return 1.0
        p = left / left.sum()
    return float(1 - refused)


class _Later:
    """Drafts after a first draft d that was rejected.

    p2 = norm((p - q)₊) does not depend on d and is 0 at d. The next draft's distribution does depend on d: it is q/s
    without d, with s = 1 - q_d. Sums of min(p2, multiples of q) are sums over prefixes and suffixes of the tokens in
    the order of p2/q.
    """

    def __init__(self, p2: Floats, q: Floats) -> None:
        self.p2, self.q = p2, q
        drawn = np.flatnonzero(q > 0)
        ratio = p2[drawn] / q[drawn]
        order = np.argsort(ratio, kind="stable")
        self.ratio = ratio[order]
        self.p_below = np.append(0.0, np.cumsum(p2[drawn][order]))  # of the first 0, 1, … tokens
        # The same for q where p2 is not 0; including the rest would cost the differences of these sums their precision.
        self.q_below = np.append(0.0, np.cumsum(np.where(p2 > 0, q, 0.0)[drawn][order]))
        self.q_above = np.append(np.cumsum(q[drawn][order][::-1])[::-1], 0.0)  # of the tokens from the 0th, 1st, … on

    def second(self, s: Floats) -> Floats:
        """Σ min(p2, q/s): the acceptance of the second draft."""
        at = np.searchsorted(self.ratio, 1 / s, side="right")
        return self.p_below[at] + self.q_above[at] / s

    def third(self, refused: Floats, most: int) -> Expected:
        """What the third draft adds to the overall acceptance.

        p3 = norm((p2 - q/s)₊), and a second draft e leaves u = s - q_e to the third. Σ min(p3, q/u) is weighted by the
        probability that d and e are drawn and rejected, refused_d (q_e/s - p2_e)₊. The sum grows as u falls, so the
        second drafts that are not among the `most` likeliest are bounded together: by u = s, and by s less the largest
        of their probabilities.
        """
        p2, q = self.p2, self.q
        firsts = np.argsort(-refused, kind="stable")[:FIRSTS]
        firsts = firsts[refused[firsts] > 0]
        likely = np.argsort(-q, kind="stable")
        seconds, largest = likely[:most], q[likely[most]] if len(q) > most else 0.0
        others = rest(q)
        s = others[firsts][:, None]
        both = pair_rest(q, others, *(x.ravel() for x in np.meshgrid(firsts, seconds, indexing="ij")))
        u = np.hstack([both.reshape(len(firsts), -1), s, s - largest])
        mass = np.maximum(1 - self.second(s), 0.0)  # [firsts, 1]: of (p2 - q/s)₊, so of all rejected second drafts
        low = np.searchsorted(self.ratio, 1 / s, side="right")
        high = np.searchsorted(self.ratio, 1 / s + mass / u, side="right")
        kept = self.p_below[high] - self.p_below[low] - (self.q_below[high] - self.q_below[low]) / s
        with np.errstate(divide="ignore", invalid="ignore"):
            accepted = np.where(mass > 0, kept / mass + self.q_above[high] / u, 1.0).clip(0.0, 1.0)
        weight = np.maximum(q[seconds] / s - p2[seconds], 0.0) * (firsts[:, None] != seconds)
        unlikely = np.maximum(mass[:, 0] - weight.sum(1), 0.0)
        added = refused[firsts] @ ((weight * accepted[:, :-2]).sum(1) + unlikely * accepted[:, -2])
        missing = refused[firsts] @ (unlikely * (accepted[:, -1] - accepted[:, -2]))
        return Expected(float(added), float(missing + max(refused.sum() - refused[firsts].sum(), 0.0)))
