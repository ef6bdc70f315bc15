"""Losses of a draft against its target: cross-entropy, divergences, and TVD++ (arXiv 2403.00858).

Everywhere p is the target's distribution and q the draft's, over the whole vocabulary at temperature 1. A loss is a
value for each place; means and weights are the caller's. No gradient reaches the target.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from specbench_extras.drafts.recipe import DraftRecipe, Sides


def losses(recipe: DraftRecipe, drafted: Tensor, taught: Tensor, tokens: Tensor, rejected: Tensor) -> Tensor:
    """The loss [n] at n places, by logits of the draft and of the target [n, V], float32 or wider.

    `tokens` [n] are the text's own, which `ce` alone reads; `rejected` [n] is read by `split` alone: the recipe's
    divergence for rejected slots where it is True, by default reverse KL, and that for accepted ones elsewhere, by
    default forward KL (Draft-OPD, arXiv 2605.29343).
    """
    log_q, log_p = drafted.log_softmax(-1), taught.detach().log_softmax(-1)
    match recipe.loss:
        case "ce":
            return F.nll_loss(log_q, tokens, reduction="none")
        case "fkl":
            return divergence(log_p, log_q)
        case "rkl":
            return divergence(log_q, log_p)
        case "jsd":
            return jensen_shannon(log_p, log_q, recipe.beta)
        case "tvd":
            return total_variation(log_p, log_q)
        case "tvd++":
            return normalised_reward(log_p, log_q)
        case "split":
            return split(recipe, log_p, log_q, rejected)


def split(sides: Sides, log_p: Tensor, log_q: Tensor, rejected: Tensor) -> Tensor:
    """The divergence [n] of each slot of drafted blocks: one where the slot is `rejected` [n], another elsewhere."""
    both = {"fkl": divergence(log_p, log_q), "rkl": divergence(log_q, log_p)}
    return torch.where(rejected, both[sides.rejected], both[sides.accepted])


def mean_of_sides(values: Tensor, rejected: Tensor, slots: Tensor, counts: tuple[int, int], decay: float) -> Tensor:
    """The mean of two means of values [n]: of accepted slots, and of rejected ones, where slot k weighs decay^k.

    `counts` are how many slots of both kinds the step has, of which these n may be a part; a kind that it has none of
    is left out. Rejected slots are divided by their number, not by their weights (the paper's form, by a secondary
    source; its code sums the weights).
    """
    accepted, refused = (values / max(1, count) for count in counts)
    decayed = refused * decay**slots
    return torch.where(rejected, decayed, accepted).sum() / sum(count > 0 for count in counts)


def divergence(log_a: Tensor, log_b: Tensor) -> Tensor:
    """KL(a‖b) [n] in nats, of log-probabilities [n, V]; what is impossible in a adds nothing."""
    a = log_a.exp()
    return torch.where(a > 0, a * (log_a - log_b), 0.0).sum(-1)


def jensen_shannon(log_p: Tensor, log_q: Tensor, beta: float) -> Tensor:
    """β KL(p‖m) + (1 - β) KL(q‖m) [n] with m = β p + (1 - β) q (DistillSpec, arXiv 2310.08461)."""
    mean = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    return beta * divergence(log_p, mean) + (1 - beta) * divergence(log_q, mean)


def total_variation(log_p: Tensor, log_q: Tensor) -> Tensor:
    """½ Σ |p - q| [n]: the probability that speculative sampling rejects a token of the draft."""
    return 0.5 * (log_p.exp() - log_q.exp()).abs().sum(-1)


def normalised_reward(log_p: Tensor, log_q: Tensor) -> Tensor:
    """A loss [n] whose gradient is TVD++'s; its value is no divergence.

    The reward of a token is r = 1{p > q}; its advantage is (r - μ)/σ, with μ and σ over the n places and the vocabulary
    under q, and σ left out where all rewards are equal. The n places are those of one forward, of at most 4,096 tokens,
    not of the whole batch where that has more (the scope is our inference). The gradient is that of
    -E_q[advantage · log q], its expectation taken over the vocabulary and not by sampling (our inference).
    """
    q = log_q.detach().exp()
    reward = (log_p > log_q.detach()).to(q.dtype)
    mean = (q * reward).sum(-1).mean()
    spread = (q * (reward - mean) ** 2).sum(-1).mean().sqrt()
    advantage = (reward - mean) / torch.where(spread > 0, spread, 1.0)
    return -torch.where(q > 0, q * advantage * log_q, 0.0).sum(-1)
