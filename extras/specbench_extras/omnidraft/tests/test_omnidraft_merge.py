"""Merged drafts: the law of a round enumerated with its seeded defects, which runs are merged, and a merge by hand."""

import functools
import itertools
import math
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
import torch
from enumerated import Laws, finish, target_law

from specbench.engine.lengths import Lengths
from specbench.engine.types import Sampling, Scored
from specbench_extras.omnidraft import omnidraft, omnidraft_merge
from specbench_extras.omnidraft.omnidraft import MergingDrafter
from specbench_extras.omnidraft.omnidraft_merge import Merging, Spellings, greedy_chances, weighed_moves

EXACT = 1e-12

# The law of a round, enumerated. The target's tokens are a b c, then ab abc bb, one that the draft cannot spell, yc and
# cay; the draft's are a b c y. So a, b and ab may go on, c may but then not end as ca, and y must go on.
SPELLED = ((0,), (1,), (2,), (0, 1), (0, 1, 2), (1, 1), (0,), (3, 2), (2, 0, 3))
V, OWN, COUNT = len(SPELLED), 4, 3


def small(added=(3, 4, 5, 6, 7, 8)) -> Spellings:
    given = SimpleNamespace(size=V, size_draft=OWN, shared={0: 0, 1: 1, 2: 2}, spell=lambda token: SPELLED[token])
    spellings = Spellings(given, torch.device("cpu"))
    for token in added:
        spellings.add(token)
    return spellings


def rows_of(size: int, seed: int):
    """A random distribution after every text, made where it is asked for."""
    return functools.cache(lambda text: np.random.default_rng((seed, 7, *text)).dirichlet(np.full(size, 0.7)))


class Told:
    """A draft model that says the rows of a table."""

    device = torch.device("cpu")

    def __init__(self, rows) -> None:
        self.rows, self.inner = rows, self

    def read(self, context, hidden=()) -> Scored:
        self.text = [own for token in context for own in SPELLED[token]]
        return self.said()

    def forward(self, token, hidden=()) -> Scored:
        self.text.append(int(token))
        return self.said()

    def said(self) -> Scored:
        return Scored(torch.tensor(self.rows(tuple(self.text))).log()[None])


class Branch(Exception):
    """A draw that the script does not have."""


def proposals(drafter: MergingDrafter, gamma: int, sampling: Sampling, monkeypatch):
    """Every draft that may be drawn after the text `a`, with its chance."""
    scripts = [((), 1.0)]
    while scripts:
        script, weight = scripts.pop()
        left = list(script)

        def scripted(logits, sampling, rng, left=left):
            probs = torch.tensor(np.array([oracle.warp(logits[0], sampling.temperature, sampling.top_k).numpy()]))
            if not left:
                raise Branch(probs[0])
            return torch.tensor([left.pop(0)]), probs

        monkeypatch.setattr(omnidraft, "draw", scripted)
        try:
            yield drafter.propose([0], gamma, sampling, None), weight
        except Branch as more:
            scripts += [((*script, i), weight * float(p)) for i, p in enumerate(more.args[0]) if p]


def law_of_a_round(monkeypatch, sampling: Sampling, gamma: int, seed: int, spellings=None) -> tuple[float, float]:
    """How far the law of a round and the target after it is from the target's; the chance of a merged token in it."""
    spellings = spellings or small()
    says = rows_of(V, seed)
    laws_p: Laws = {}
    for length in range(COUNT):
        for text in itertools.product(range(V), repeat=length):
            laws_p[text] = oracle.warp(np.log(says(text)), sampling.temperature, sampling.top_k).numpy()
    drafter = MergingDrafter(Told(rows_of(OWN, seed + 50)), spellings, Lengths())
    law, merged = np.zeros((V,) * COUNT), 0.0
    for draft, weight in proposals(drafter, gamma, sampling, monkeypatch):
        tokens = tuple(draft.tokens.tolist())
        assert sum(len(SPELLED[token]) for token in tokens) >= gamma
        merged += weight * any(len(SPELLED[token]) > 1 for token in tokens)
        for place, (token, moves) in enumerate(zip(tokens[:COUNT], draft.moves, strict=False)):
            for chance, rest in weighed_moves(spellings, moves, torch.tensor(laws_p[tokens[:place]])):
                emitted = (rest / rest.sum()).numpy() * weight * (1 - float(chance))
                for other in np.flatnonzero(emitted):
                    finish(laws_p, law, (*tokens[:place], int(other)), emitted[other], COUNT)
                weight *= float(chance)
                if not weight:
                    break
            assert token == tokens[place]
        finish(laws_p, law, tokens[:COUNT], weight, COUNT)
    return float(np.abs(law - target_law(laws_p, V, COUNT)).sum() / 2), merged


@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.5), Sampling(1.3, top_k=3)), ids=str)
@pytest.mark.parametrize("gamma", (1, 3))
def test_merged_drafts_are_lossless(monkeypatch, gamma, sampling):
    distance, merged = law_of_a_round(monkeypatch, sampling, gamma, 0)
    assert distance < EXACT and (merged > 0.1 or gamma == 1)


def forgotten(law, children):
    """Wrong: the law of the draft's next token, as if nothing were known of it."""
    return law


def unmerged(law, children):
    """Wrong: the first token of a merged one keeps all of its mass."""
    return None if law is None else torch.cat([law[children], law.new_ones(1)])


@pytest.mark.parametrize(("name", "wrong"), (("without", forgotten), ("options_law", unmerged)))
def test_a_forgotten_merge_is_found(monkeypatch, name, wrong):
    monkeypatch.setattr(omnidraft_merge, name, wrong)
    assert law_of_a_round(monkeypatch, Sampling(1.0), 3, 0)[0] > 1e-3


def test_a_worked_merge():
    """q(a) = 0.6 and q(b | a) = 0.5: ab has 0.3 and a has 0.3; what follows a is not b, so c has 0.2 / 0.5."""
    first, after = torch.tensor([[[0.6, 0.4, 0.0, 0.0]], [[0.1, 0.5, 0.2, 0.2]]], dtype=torch.float64)
    merging = Merging(small(added=(3,)))
    merging.take(0, first)
    assert not merging.tokens and merging.ends
    merging.take(2, after)
    assert merging.tokens == [0, 2]
    (begun, ended), (following,) = merging.moves
    assert float(begun.law[0]) == 0.6 and ended.law.tolist() == [0.5, 0.5] and ended.ends and not begun.ends
    assert following.law.tolist() == pytest.approx([0.2, 0, 0.4, 0.4])
    merging = Merging(small(added=(3,)))
    merging.take(0, first)
    merging.take(1, after)
    assert merging.tokens == [3] and [move.chosen for move in merging.moves[0]] == [0, 0]
    merging = Merging(small(added=(3,)))
    merging.take(0, first)
    merging.end()
    assert merging.tokens == [0] and merging.moves[0][1].law.tolist() == [0, 1], "that it ends is certain"


def test_the_longest_run_is_merged_and_others_may_not_follow():
    spellings = small()
    assert spellings.added == [3, 4, 5, 7, 8], "nothing spells the one that looks like a"
    zeros = torch.zeros(1, OWN)
    open_a, open_y = spellings.root.children[0], spellings.root.children[3]
    assert spellings.allowed(zeros, spellings.root).tolist() == [[0, 0, 0, 0]]
    plain = small(added=())
    assert plain.allowed(zeros, plain.root).tolist() == [[0, 0, 0, -math.inf]]
    assert spellings.allowed(zeros, open_a).tolist() == [[0, 0, 0, 0]]
    assert spellings.allowed(zeros, open_y).tolist() == [[-math.inf, -math.inf, 0, -math.inf]]
    merging = Merging(spellings)
    for own in (0, 1, 2, 1, 1, 3, 2, 2):
        merging.take(own, None)
    assert merging.tokens == [4, 5, 7] and merging.ends
    merging.take(0, None)
    assert not merging.ends, "ca is no token"
    merging.take(3, None)
    assert merging.tokens == [4, 5, 7, 8]


def test_what_the_target_agrees_with():
    spellings = small()
    assert greedy_chances(spellings, [1, 4, 2], 3, 0) == [1] * 5
    assert greedy_chances(spellings, [1, 4, 2], 1, 3) == [1, 1, 1, 0], "ab, not abc"
    assert greedy_chances(spellings, [3], 0, 4) == [1, 0], "abc, not ab"
    assert greedy_chances(spellings, [3], 0, 6) == greedy_chances(spellings, [3], 0, 2) == [0]
