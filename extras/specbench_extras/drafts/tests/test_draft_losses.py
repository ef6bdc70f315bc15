"""Losses of a draft: a two-token example by hand, finite differences, and the identity of TVD++'s gradient."""

import functools
import math

import pytest
import torch

from specbench.config import UserError
from specbench.training.recipe import load_recipe
from specbench_extras.drafts.losses import losses
from specbench_extras.drafts.recipe import DraftRecipe

LOSSES = ("ce", "fkl", "rkl", "jsd", "tvd", "split")


@functools.cache
def preset() -> dict:
    return load_recipe("draft-distillspec", []).values


def recipe(**changes) -> DraftRecipe:
    return DraftRecipe(**{**preset(), **changes})


def places(n: int = 6, vocabulary: int = 5):
    rng = torch.Generator().manual_seed(1)
    drafted, taught = (2 * torch.randn(n, vocabulary, generator=rng, dtype=torch.float64) for _ in range(2))
    return drafted, taught, torch.arange(n) % vocabulary, torch.arange(n) % 2 == 0


def of(loss, drafted, rest, **changes):
    return losses(recipe(loss=loss, **changes), drafted, *rest)


def test_two_tokens_by_hand():
    """p = (0.75, 0.25), q = (0.5, 0.5), the text has the second token; the mean of both is (0.625, 0.375)."""
    taught, drafted = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.5, 0.5]]).log()
    forward = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    reverse = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    to_mean = 0.75 * math.log(0.75 / 0.625) + 0.25 * math.log(0.25 / 0.375)
    from_draft = 0.5 * math.log(0.5 / 0.625) + 0.5 * math.log(0.5 / 0.375)
    expected = {
        "ce": math.log(2),
        "fkl": forward,
        "rkl": reverse,
        "jsd": 0.5 * to_mean + 0.5 * from_draft,
        "tvd": 0.25,
        # r = (1, 0) under q: mean 1/2, spread 1/2, advantages ±1; -½ (log ½ - log ½) = 0.
        "tvd++": 0.0,
    }
    for loss, value in expected.items():
        result = of(loss, drafted, (taught, torch.tensor([1]), torch.tensor([False])))
        assert result.tolist() == pytest.approx([value], abs=1e-6), loss
    for rejected, value in ((False, forward), (True, reverse)):
        result = of("split", drafted, (taught, torch.tensor([1]), torch.tensor([rejected])))
        assert result.tolist() == pytest.approx([value], abs=1e-6)


def test_the_weight_of_the_mean_by_hand():
    """β = 0.25: m = 0.25 p + 0.75 q, and KL(p‖m) counts for a quarter."""
    p, q = (0.75, 0.25), (0.5, 0.5)
    m = [0.25 * a + 0.75 * b for a, b in zip(p, q, strict=True)]
    expected = 0.25 * sum(a * math.log(a / c) for a, c in zip(p, m, strict=True))
    expected += 0.75 * sum(b * math.log(b / c) for b, c in zip(q, m, strict=True))
    rest = torch.tensor([p]).log(), torch.tensor([0]), torch.tensor([False])
    assert of("jsd", torch.tensor([q]).log(), rest, beta=0.25).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_those_of_finite_differences(loss):
    drafted, *rest = places()
    drafted.requires_grad_()
    of(loss, drafted, rest).sum().backward()
    step, slopes = 1e-6, torch.empty_like(drafted)
    with torch.no_grad():
        for i in range(drafted.numel()):
            bump = torch.zeros(drafted.numel(), dtype=torch.float64)
            bump[i] = step
            bump = bump.view_as(drafted)
            higher, lower = (float(of(loss, drafted + sign * bump, rest).sum()) for sign in (1, -1))
            slopes.view(-1)[i] = (higher - lower) / (2 * step)
    assert torch.allclose(drafted.grad, slopes, atol=1e-7)
    assert float(slopes.abs().max()) > 0.01


def test_the_gradient_of_tvd_is_a_policy_gradient_and_that_of_tvd_plus_plus_is_scaled():
    """∂TVD/∂logits = -q (r - E_q r) with r = 1{p > q}; TVD++ divides it by the spread of r over all places."""
    drafted, *rest = places()
    q, p = drafted.softmax(-1), rest[0].softmax(-1)
    reward = (p > q).double()
    identity = -q * (reward - (q * reward).sum(-1, keepdim=True))
    mass = (q * reward).sum(-1)  # r is 0 or 1: its variance follows from its mean
    spread = math.sqrt(float(mass.mean() * (1 - mass.mean())))
    for loss, expected in (("tvd", identity), ("tvd++", identity / spread)):
        learned = drafted.clone().requires_grad_()
        of(loss, learned, rest).sum().backward()
        assert torch.allclose(learned.grad, expected, atol=1e-12), loss


@pytest.mark.parametrize("loss", (*LOSSES, "tvd++"))
def test_equal_distributions_teach_nothing_and_the_target_never_learns(loss):
    drafted, taught, *rest = places()
    taught = drafted.clone().requires_grad_()
    learned = drafted.clone().requires_grad_()
    of(loss, learned, (taught, *rest)).sum().backward()
    assert taught.grad is None
    if loss != "ce":
        assert torch.allclose(learned.grad, torch.zeros_like(drafted), atol=1e-9)


@pytest.mark.parametrize("loss", (*LOSSES, "tvd++"))
def test_tokens_that_are_impossible_leave_losses_and_gradients_finite(loss):
    drafted, taught, tokens, rejected = places()
    drafted, taught = drafted.float(), taught.float()
    drafted[:, 4] = taught[:, 3] = -200.0  # 0 in float32
    drafted[0, 3] = taught[1, 4] = -200.0
    tokens = tokens % 3
    drafted.requires_grad_()
    result = of(loss, drafted, (taught, tokens, rejected))
    result.sum().backward()
    assert result.isfinite().all() and drafted.grad.isfinite().all()


def test_settings_that_do_not_go_together_are_refused():
    with pytest.raises(UserError, match="take data=replay, not draft"):
        recipe(loss="split").check()
    with pytest.raises(UserError, match="give numbers from 0 on"):
        recipe(temperatures=[-1]).check()
    assert recipe(temperatures="0,0.6").temperatures == (0.0, 0.6) and recipe(temperatures=1).temperatures == (1.0,)
