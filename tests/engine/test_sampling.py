"""Gate: sampled texts follow the target's own distribution, and a check that would notice if they did not."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from cases import mostly_long
from gates import DEVICE
from law import V, fit, two_tokens
from recalled import recalled

from specbench.engine import accept as acceptance
from specbench.engine.drafters import ModelDrafter
from specbench.engine.sampling import draw, pick, probabilities, residual
from specbench.engine.speculate import speculate
from specbench.engine.types import Draft, Sampling
from specbench.methods.chains.sps import SpS
from specbench.methods.chains.vanilla import Vanilla

VOCABULARY = 8
SETTINGS = (
    Sampling(1.0),
    Sampling(0.6),
    Sampling(1.3, top_k=3),
    Sampling(1.0, top_p=0.8),
    Sampling(0.8, top_k=5, top_p=0.7),
)
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it


@pytest.fixture(scope="module")
def models():
    """A target and a draft that differ enough for every wrong rule to show."""
    return tuple(oracle.tiny("llama", seed=seed, vocab=VOCABULARY).to(DEVICE) for seed in (1, 2))


def test_probabilities_equal_the_oracles_and_hand_values():
    """The oracle's are those of transformers' warpers: test_oracle.py."""
    logits = torch.randn(50, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 3
    for chosen in ((0.7, 0, 1.0), (1.0, 5, 1.0), (1.5, 0, 0.6), (0.9, 12, 0.85)):
        expected = torch.stack([oracle.warp(row, *chosen) for row in logits])
        torch.testing.assert_close(probabilities(logits, Sampling(*chosen)), expected)
    # p = 0.5, 0.3, 0.15, 0.05: the smallest set that reaches 0.6 is the first two.
    logits = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log()
    torch.testing.assert_close(probabilities(logits, Sampling(1.0, top_p=0.6)), torch.tensor([[0, 0.625, 0, 0.375]]))


def test_top_p_keeps_no_more_than_reaches_it():
    """Where the likeliest tokens have exactly that mass, the next one is out."""
    logits = torch.tensor([[0.0, 0.0, -torch.inf, -torch.inf], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(probabilities(logits, Sampling(1.0, top_p=0.5)), expected)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_half_precision_is_widened_before_anything_is_computed(dtype):
    logits = (torch.randn(5, 300, generator=torch.Generator().manual_seed(3)) * 3).to(dtype)
    shares = probabilities(logits, Sampling(0.7))
    assert shares.dtype == torch.float32
    expected = torch.stack([oracle.warp(row.double(), 0.7) for row in logits])
    torch.testing.assert_close(shares.double(), expected.double(), rtol=1e-5, atol=1e-9)


def test_residual_by_hand():
    p, q = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.8, 0.0]]), torch.tensor([[0.2, 0.3, 0.5], [0.2, 0.8, 0.0]])
    torch.testing.assert_close(residual(p, q), torch.tensor([[0.3, 0.0, 0.0], [0.2, 0.8, 0.0]]))


def test_pick_never_takes_the_impossible(monkeypatch):
    """Not even where a generator rounds every waiting time to exactly 0."""
    probs = torch.zeros(3, 50, device=DEVICE)
    probs[:, 7] = 0.25
    assert (pick(probs, torch.Generator(DEVICE)) == 7).all()
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, generator: self.zero_())
    assert (pick(probs, torch.Generator(DEVICE)) == 7).all()


def test_draw_follows_the_distribution():
    logits = torch.tensor([[2.0, 0.0, 1.0, -1.0]], device=DEVICE).expand(20_000, 4)
    tokens, q = draw(logits, Sampling(0.8), torch.Generator(DEVICE).manual_seed(1))
    expected = oracle.warp(logits[0].cpu().double(), 0.8).numpy()
    assert oracle.chi_square(np.bincount(tokens.cpu().numpy(), minlength=4), expected) > ALPHA
    assert q is not None and q.shape == (20_000, 4)
    assert draw(logits[:1], Sampling(0), torch.Generator(DEVICE))[0].tolist() == [0]


@mostly_long("sampling", SETTINGS, (Sampling(1.0), Sampling(0.8, 5, 0.7)), ids=str)
def test_sps_samples_from_the_target(models, sampling):
    target, draft = models
    method = SpS(recalled(target, "target"), ModelDrafter(recalled(draft, "draft")), 2)
    assert two_tokens(method, target, sampling) > ALPHA


@pytest.mark.long
def test_every_position_of_a_draft_samples_from_the_target(monkeypatch):
    """The prefill's token, two drafted ones and the bonus; a correction that belongs to the next position is seen."""
    target, draft = (
        recalled(oracle.tiny("llama", seed=seed, vocab=V).to(DEVICE), role)
        for seed, role in ((1, "target"), (2, "draft"))
    )
    method = SpS(target, ModelDrafter(draft), 2)
    right = fit(method, target.model, [1, 3, 2], 4, Sampling(1.0), 1500)
    assert right.p > ALPHA and right.accepted > 400 and right.rejected > 400
    exact_test = acceptance.exact_test

    def shifted(*arguments):
        tested = exact_test(*arguments)
        return replace(tested, emit=torch.cat([tested.emit[:1], tested.emit[2:], tested.emit[1:2]]))

    monkeypatch.setattr(acceptance, "exact_test", shifted)
    assert fit(method, target.model, [1, 3, 2], 4, Sampling(1.0), 1500).p < ALPHA


def test_vanilla_samples_from_the_target(models):
    assert two_tokens(Vanilla(recalled(models[0], "target")), models[0], SETTINGS[-1]) > ALPHA


class GreedyDrafter(ModelDrafter):
    """Wrong: drafts the likeliest token but says that it was drawn from q."""

    def propose(self, context, gamma, sampling, rng):
        scored = self.session.catch_up(context)
        tokens, probs = [], []
        for step in range(gamma):
            token = scored.logits[-1:].argmax(-1)
            tokens.append(token)
            probs.append(probabilities(scored.logits[-1:], sampling))
            if step < gamma - 1:
                scored = self.session.forward(token)
        return Draft(torch.cat(tokens), torch.cat(probs))


class OneSided(SpS):
    """Wrong: top-p when drafting, none when verifying."""

    def rounds(self, prompt, sampling, rng):
        def accept(draft, scored, sampling, rng):
            return acceptance.exact(draft, scored, Sampling(sampling.temperature), rng)

        return speculate(self.target, self.drafter, accept, self.gamma, prompt, sampling, rng)


def test_seeded_defects_are_found(models, monkeypatch):
    target, draft = models
    session = recalled(target, "target")
    greedy = SpS(session, GreedyDrafter(recalled(draft, "draft")), 2)
    assert two_tokens(greedy, target, Sampling(1.0), 1000) < ALPHA
    one_sided = OneSided(session, ModelDrafter(recalled(draft, "draft")), 2)
    assert two_tokens(one_sided, target, Sampling(1.0, top_p=0.8), 1000) < ALPHA
    monkeypatch.setattr(acceptance, "residual", lambda p, q: p)
    no_residual = SpS(session, ModelDrafter(recalled(draft, "draft")), 2)
    assert two_tokens(no_residual, target, Sampling(1.0), 2000) < ALPHA


def test_a_point_mass_draft_is_judged_exactly(models):
    """Drafts without a distribution (prompt lookup, say): accepted with probability p(d), else drawn from the rest."""
    target, draft = models

    class Deterministic(ModelDrafter):
        def propose(self, context, gamma, sampling, rng):
            return Draft(super().propose(context, gamma, Sampling(), rng).tokens, None)

    method = SpS(recalled(target, "target"), Deterministic(recalled(draft, "draft")), 2)
    assert two_tokens(method, target, Sampling(1.0, top_k=6)) > ALPHA


@pytest.mark.parametrize(
    ("arguments", "message"), [((-0.1,), "temperature"), ((1.0, -1), "top-k"), ((1.0, 0, 0.0), "top-p")]
)
def test_impossible_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Sampling(*arguments)
