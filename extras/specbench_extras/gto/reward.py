"""What a tree is worth to the target, and how a group of trees is compared (GTO, arXiv 2509.22134)."""

from collections.abc import Sequence

import torch
from torch import Tensor

DELTA = 1e-6  # added to the standard deviation of a group's rewards (our inference)


def expected_lengths(chances: Sequence[float], parents: Sequence[int]) -> list[float]:
    """The tokens that the target is expected to accept of each branch of a tree: L_S = Σ_j Π_{k≤j} p(x_k).

    `chances` [K] are the target's probabilities p of the nodes, each after those on its path, and `parents` [K] their
    parents, lower than their own index, or -1 for the text. A branch leads to a node without children.
    """
    reached: list[float] = []  # the probability that the target accepts a node and all those above it
    lengths: list[float] = []  # the sum of that over a node's path
    for chance, parent in zip(chances, parents, strict=True):
        reached.append(chance * (reached[parent] if parent >= 0 else 1.0))
        lengths.append(reached[-1] + (lengths[parent] if parent >= 0 else 0.0))
    return [length for node, length in enumerate(lengths) if node not in set(parents)]


def tree_reward(lengths: Sequence[float], eta: float) -> float:
    """r = (1/η) log Σ_S exp(η L_S) over the branches S: near the longest, and higher if others are long, too."""
    return float((eta * torch.tensor(lengths, dtype=torch.float64)).logsumexp(0)) / eta


def advantages(rewards: Tensor) -> Tensor:
    """Rewards [groups, m], each next to those of its own group: less their mean, over their standard deviation."""
    spread = rewards.std(-1, correction=0, keepdim=True)
    return (rewards - rewards.mean(-1, keepdim=True)) / (spread + DELTA)


def clipped_gain(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """min(s A, clip(s, 1 ± ε) A) [n] with s = exp(`log_ratio`): nothing is gained by going further from s = 1."""
    ratio = log_ratio.exp()
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
