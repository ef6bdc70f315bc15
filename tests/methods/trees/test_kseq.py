"""K-SEQ leaves the target's law as it is: enumerated in one place to 1e-12, by hand, and in drawn texts."""

import itertools

import numpy as np
import pytest
import torch
from builders_engine import build, made
from cases import mostly_long
from refusals import one_line_error
from tabled import p_of_texts

from specbench.engine.types import Sampling
from specbench.methods.trees import kseq
from specbench.methods.trees.kseq import split
from specbench.methods.trees.mdsd import MDSD, Settings

EXACT = 1e-12
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it


def emitted(p: np.ndarray, q: np.ndarray, k: int) -> tuple[np.ndarray, float]:
    """The law [V] of the token of a place with k drafts, and the chance that one of them is accepted."""
    rho, left = split(torch.tensor(p[None]), torch.tensor(q[None]), torch.tensor([k]).double())
    passes = np.minimum(1, np.divide(p, float(rho) * q, out=np.zeros_like(p), where=q > 0))
    law, rejected = np.zeros(len(p)), 0.0
    for drawn in itertools.product(range(len(p)), repeat=k):
        chance = float(np.prod(q[list(drawn)]))
        for token in drawn:
            law[token] += chance * passes[token]
            chance *= 1 - passes[token]
        rejected += chance
    rest = left[0].numpy()
    return law + rejected * rest / rest.sum(), 1 - rejected


def places(vocabulary: int):
    rng = np.random.default_rng(vocabulary)
    for concentration in (0.3, 1.0, 5.0):
        yield rng.dirichlet(np.full(vocabulary, concentration)), rng.dirichlet(np.full(vocabulary, concentration))
    p, q = rng.dirichlet(np.ones(vocabulary)), rng.dirichlet(np.ones(vocabulary))
    q[1], p[2] = 0, 0
    yield p / p.sum(), q / q.sum()
    yield p / p.sum(), p / p.sum()
    yield np.eye(vocabulary)[0], np.eye(vocabulary)[1]


@pytest.mark.parametrize("vocabulary", (3, 4))
@pytest.mark.parametrize("k", (1, 2, 3))
def test_the_law_of_one_place_is_p(k, vocabulary):
    for p, q in places(vocabulary):
        law, accepted = emitted(p, q, k)
        assert np.abs(law - p).sum() / 2 < EXACT
        assert accepted > np.minimum(p, q).sum() - EXACT, "no fewer than of one draft"


def test_a_worked_place():
    """p = 0 1, q = 1/2 1/2, k = 2: β = min(1 / ρ, 1/2) = 1/2 up to ρ = 2, so 1 - 1/4 = ρ/2 and ρ = 3/2.

    Token 1 passes with 1 / (3/2 · 1/2) > 1: it is accepted whenever it is drawn, 3/4 of the time.
    """
    p, q = np.array([0.0, 1.0]), np.array([0.5, 0.5])
    rho, _ = split(torch.tensor(p[None]), torch.tensor(q[None]), torch.tensor([2.0]).double())
    assert float(rho) == pytest.approx(1.5)
    assert emitted(p, q, 2)[1] == pytest.approx(0.75)


def test_too_small_a_scale_is_found(monkeypatch):
    monkeypatch.setattr(kseq, "HALVINGS", 0)
    p, q = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.35, 0.15, 0.1])
    assert np.abs(emitted(p, q, 3)[0] - p).sum() / 2 < EXACT, "ρ = k is lossless, too"

    right = split

    def least(p, q, k):
        rho, left = right(p, q, k)
        return torch.ones_like(rho), left

    monkeypatch.setattr("test_kseq.split", least)
    assert np.abs(emitted(p, q, 3)[0] - p).sum() / 2 > 1e-3


@mostly_long("sampling", (Sampling(0.7), Sampling(0.9, top_k=3, top_p=0.9)), lambda sampling: sampling.top_k, ids=str)
def test_texts_follow_the_target(sampling):
    one = Settings(drafts=3, gamma=3, replacement=True, rule="kseq")
    assert p_of_texts(lambda target, draft: MDSD(target, draft, one), sampling, 800) > ALPHA


def test_it_needs_independent_drafts():
    with one_line_error("mdsd: rule kseq needs independent drafts"):
        build(made(), "mdsd", rule="kseq", replacement=False)
