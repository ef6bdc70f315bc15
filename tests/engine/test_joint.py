"""Block and traversal verification leave the target's law as it is: enumerated, to 1e-12, and never shorter."""

import itertools

import numpy as np
import pytest
import torch
from cases import mostly_long
from enumerated import Laws, chance, finish, laws, target_law
from tabled import p_of_texts

from specbench.engine import joint
from specbench.engine.joint import block, block_ends, traversal_ends
from specbench.engine.types import Draft, Sampling
from specbench.methods.chains.sps import SpS
from specbench.methods.trees.mdsd import MDSD, Settings
from specbench.methods.trees.rsd import Branching

EXACT = 1e-12
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it


def by_blocks(p: Laws, q: Laws, vocabulary: int, k: int, ends_of=block_ends) -> tuple[np.ndarray, float]:
    """The law of K + 1 tokens of a round and the target after it, and the expected number of accepted ones."""
    law, accepted = np.zeros((vocabulary,) * (k + 1)), 0.0
    for drafted in itertools.product(range(vocabulary), repeat=k):
        weight = chance(q, drafted)
        if not weight:
            continue
        rows = torch.tensor(np.stack([p[drafted[:i]] for i in range(k + 1)]))
        drawn = torch.tensor(np.stack([*(q[drafted[:i]] for i in range(k)), np.zeros(vocabulary)]))
        ends, left = (x.numpy() for x in ends_of(torch.tensor(drafted), rows, drawn))
        for place in range(k, -1, -1):
            here = weight * ends[place]
            weight -= here
            accepted += here * place
            emitted = left[place] / left[place].sum()
            for token in np.flatnonzero(emitted):
                finish(p, law, (*drafted[:place], int(token)), here * emitted[token], k + 1)
        assert abs(weight) < EXACT, "the round ends somewhere"
    return law, accepted


def one_by_one(p: Laws, q: Laws, vocabulary: int, k: int) -> float:
    """The expected number of accepted tokens of speculative sampling: Σ over texts of Π min(p, q)."""
    return sum(
        float(np.prod([min(p[text[:i]][text[i]], q[text[:i]][text[i]]) for i in range(n)]))
        for n in range(1, k + 1)
        for text in itertools.product(range(vocabulary), repeat=n)
    )


@pytest.mark.parametrize("vocabulary", (3, 4))
@pytest.mark.parametrize("k", (1, 2, 3))
def test_blocks_are_lossless_and_no_shorter(k, vocabulary):
    gains = []
    for seed in range(4):
        p, q = laws(vocabulary, k, seed), laws(vocabulary, k, 100 + seed)
        law, accepted = by_blocks(p, q, vocabulary, k)
        assert np.abs(law - target_law(p, vocabulary, k + 1)).sum() / 2 < EXACT
        gains.append(accepted - one_by_one(p, q, vocabulary, k))
    assert min(gains) > -EXACT
    assert max(gains) < EXACT if k == 1 else max(gains) > 1e-3, "of one token both rules are one"


def test_blocks_of_the_targets_own_law_are_kept_whole():
    p = laws(3, 2, 5)
    law, accepted = by_blocks(p, p, 3, 2)
    assert accepted == pytest.approx(2) and np.abs(law - target_law(p, 3, 3)).sum() / 2 < EXACT


def test_a_worked_block():
    """p = 0.2 0.8 and q = 0.8 0.2 in both places; drafted 0 1: w = 1, 1/4, min(1, 1/4 · 4) = 1, so all is kept.

    After 0: 1/4 p - q = (0.05 - 0.8)₊, 0.2 - 0.2 = 0: nothing is left, so the draft never ends there. Of 1 0, w = 1, 1,
    1/4; after 1: p - q leaves 0.6 of token 1, so h = 0.6 / (0.6 + 1 - 1) = 1.
    """
    p, q = torch.tensor([[0.2, 0.8]] * 3).double(), torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.0, 0.0]]).double()
    ends, _ = block_ends(torch.tensor([0, 1]), p, q)
    assert ends.tolist() == pytest.approx([1, 0, 1], abs=1e-7)
    ends, left = block_ends(torch.tensor([1, 0]), p, q)
    assert ends.tolist() == pytest.approx([1, 1, 0.25], abs=1e-7) and left[1].tolist() == pytest.approx([0, 0.6])


def wrong_ends(tokens, p, q):
    """Wrong: the ends of tokens that are tested one by one, with the residuals of blocks."""
    ends, left = block_ends(tokens, p, q)
    ratios = (p[:-1] / q[:-1]).gather(-1, tokens[:, None])[:, 0].clamp(max=1)
    return torch.cat([ends[:1], ratios.cumprod(0)]), left


def test_wrong_blocks_are_found():
    p, q = laws(3, 2, 1), laws(3, 2, 101)
    law, _ = by_blocks(p, q, 3, 2, wrong_ends)
    assert np.abs(law - target_law(p, 3, 3)).sum() / 2 > 1e-3


# Trees

SHAPES = {  # parents
    "siblings": (-1, -1),
    "three": (-1, -1, -1),
    "chain": (-1, 0, 1),
    "fork": (-1, -1, 0, 1),
    "deep fork": (-1, 0, 0),
    "uneven": (-1, -1, 0, 0),
}


def by_trees(p: Laws, q: Laws, vocabulary: int, parents, replacement: bool) -> tuple[np.ndarray, float]:
    """The law of three tokens of a round and the target after it, and the expected number of accepted tokens."""
    count = 1 + max(depth_of(parents, node) for node in range(len(parents)))
    law, accepted = np.zeros((vocabulary,) * count), 0.0
    for drafted in itertools.product(range(vocabulary), repeat=len(parents)):
        texts = [text_of(parents, drafted, node) for node in range(len(parents))]
        rows, weight = [], 1.0
        for node, parent in enumerate(parents):
            row = q[texts[node][:-1]].copy()
            if not replacement:
                row[[drafted[i] for i in range(node) if parents[i] == parent]] = 0
            if not row.sum():
                weight = 0.0
                break
            rows.append(row / row.sum())
            weight *= rows[-1][drafted[node]]
        if not weight:
            continue
        draft = Draft(torch.tensor(drafted), torch.tensor(np.stack(rows)), parents)
        table = torch.tensor(np.stack([p[()], *(p[text] for text in texts)]))
        ends, left = (x.numpy() for x in traversal_ends(draft, draft.probs, table))
        for node in [*after_children(parents, -1)]:
            here = weight * ends[node + 1]
            weight -= here
            prefix = texts[node] if node >= 0 else ()
            accepted += here * len(prefix)
            emitted = left[node + 1] / left[node + 1].sum()
            for token in np.flatnonzero(emitted):
                finish(p, law, (*prefix, int(token)), here * emitted[token], count)
        assert abs(weight) < EXACT, "the round ends somewhere"
    return law, accepted


def depth_of(parents, node: int) -> int:
    return 0 if node < 0 else 1 + depth_of(parents, parents[node])


def text_of(parents, drafted, node: int) -> tuple[int, ...]:
    return () if node < 0 else (*text_of(parents, drafted, parents[node]), drafted[node])


def after_children(parents, node: int):
    for child, parent in enumerate(parents):
        if parent == node:
            yield from after_children(parents, child)
    yield node


@pytest.mark.parametrize("replacement", (True, False), ids=("with", "without"))
@pytest.mark.parametrize("shape", SHAPES)
def test_traversals_are_lossless(shape, replacement):
    for seed in range(2):
        p, q = laws(3, 3, seed), laws(3, 3, 100 + seed)
        law, _ = by_trees(p, q, 3, SHAPES[shape], replacement)
        assert np.abs(law - target_law(p, 3, law.ndim)).sum() / 2 < EXACT


@pytest.mark.parametrize("k", (1, 2, 3))
def test_a_traversed_chain_is_a_block(k):
    p, q = laws(3, k, 2), laws(3, k, 102)
    law, accepted = by_trees(p, q, 3, tuple(range(-1, k - 1)), True)
    expected, kept = by_blocks(p, q, 3, k)
    np.testing.assert_allclose(law, expected, rtol=0, atol=EXACT)
    assert accepted == pytest.approx(kept, abs=1e-9)


def test_wrong_traversals_are_found(monkeypatch):
    p, q = laws(3, 3, 1), laws(3, 3, 101)
    right = joint.after_rejection
    for wrong in (lambda w, p, q: (right(w, p, q)[0], p), lambda w, p, q: (w, right(w, p, q)[1])):
        monkeypatch.setattr(joint, "after_rejection", wrong)
        law, _ = by_trees(p, q, 3, SHAPES["fork"], False)
        assert np.abs(law - target_law(p, 3, law.ndim)).sum() / 2 > 1e-3


def chained(draft: Draft, scored, sampling: Sampling, rng: torch.Generator):
    """Block verification of a tree that is a chain."""
    assert draft.parents == tuple(range(-1, len(draft.tokens) - 1))
    return block(Draft(draft.tokens, draft.probs), scored, sampling, rng)


# Drawn texts, whose rounds follow one another


@mostly_long("sampling", (Sampling(0.7), Sampling(0.9, top_k=3, top_p=0.9)), lambda sampling: sampling.top_k, ids=str)
def test_texts_of_blocks_follow_the_target(sampling):
    assert p_of_texts(lambda target, draft: SpS(target, Branching(draft, []), 3, chained), sampling, 800) > ALPHA


@mostly_long("replacement", (True, False), (False,), ids=("with", "without"))
def test_texts_of_traversals_follow_the_target(replacement):
    one = Settings(drafts=3, gamma=3, replacement=replacement, rule="traversal")
    assert p_of_texts(lambda target, draft: MDSD(target, draft, one), Sampling(0.7), 800) > ALPHA
