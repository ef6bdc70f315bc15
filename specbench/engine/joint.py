"""Rules that judge the tokens of a draft together: never fewer of them are accepted than one by one. Lossless.

A token's weight w is the chance that it and all before it are kept, given how likely the target finds them together.
Whether the draft goes on after a token is decided from its end: a path is kept as long as possible.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.accept import Tested, exact, proposals, weigh
from specbench.engine.sampling import pick, probabilities
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Sampling, Scored, Verdict


def block(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
    """Block verification of a chain (Sun et al., arXiv 2403.10444, Algorithm 2); greedy, it is the exact rule."""
    if sampling.greedy:
        return exact(draft, scored, sampling, rng)
    p = probabilities(scored.logits, sampling)
    ends, left = block_ends(draft.tokens, p, proposals(draft, p))
    ended = torch.rand(len(ends), generator=rng, device=p.device, dtype=p.dtype) < ends
    places = torch.arange(len(ends), device=p.device)
    accepted = (places * ended).max()
    weighed = weigh(draft, scored, sampling, rng, Tested(places[:-1] < accepted, pick(left, rng)))
    return weighed.verdict(sum(weighed.passed))


def block_ends(tokens: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The chance [K + 1] that a chain of K tokens ends after i of them, if it ends no later; what is emitted then.

    p and q [K + 1, V] are the distributions of target and draft, the last row of q zero. What is emitted is drawn from
    the second result [K + 1, V], which is not normalised.
    """
    return after_rejection(block_weights(tokens, p[:-1], q[:-1]), p, q)


def block_weights(tokens: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """w_0 = 1 and w_i = min(1, w_{i-1} p_i / q_i) [K + 1] of K drafted tokens, by p and q [K, V] at their places."""
    logs = (p / q).gather(-1, tokens[:, None])[:, 0].log().cumsum(0)
    return torch.cat([torch.ones_like(p[:1, 0]), (logs - logs.cummax(0).values.clamp(min=0)).exp()])


def after_rejection(weights: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [n] and distributions p [n, V] after a rejected token that was drawn from q [n, V].

    What is left of w p is (w p - q)₊, of mass R; the rejection had the probability 1 - w + R. The distributions are not
    normalised, and those of which nothing is left unchanged.
    """
    rest = (weights[:, None] * p - q).clamp_(min=0)
    mass = rest.sum(-1)
    rejected = mass + 1 - weights
    return torch.where(rejected > 0, mass / rejected, 1.0), torch.where(mass[:, None] > 0, rest, p)


def traversal(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
    """Traversal verification of a tree (Weng et al., arXiv 2505.12398): from the leaves to the root.

    The tree must have been drawn so that neither a token nor what follows it depends on what follows its earlier
    siblings. Of a chain, this is block verification. Trees that were not drawn have the exact rule.
    """
    if sampling.greedy or draft.probs is None:
        return exact_tree(draft, scored, sampling, rng)
    ends, left = traversal_ends(draft, draft.probs, probabilities(scored.logits, sampling))
    ended = torch.rand(len(ends), generator=rng, device=ends.device, dtype=ends.dtype) < ends
    weighed = weigh(draft, scored, sampling, rng, Tested(ended[1:], pick(left, rng)))
    children = defaultdict(list)
    for node, parent in enumerate(draft.parents or ()):
        children[parent].append(node)

    def path(node: int) -> tuple[int, ...] | None:
        """The rest of the path after a node: that of its first child that has one; None if none leads through it."""
        for child in children[node]:
            if (rest := path(child)) is not None:
                return (child, *rest)
        return () if node < 0 or weighed.passed[node] else None

    return weighed.along(path(-1) or ())


def traversal_ends(draft: Draft, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """The chance [K + 1] that the path ends at the context and at each token of a tree, if no child's path is kept.

    q [K, V] are the distributions that the tokens were drawn from, given their earlier siblings, p [K + 1, V] the
    target's. What is emitted there is drawn from the second result [K + 1, V], which is not normalised.
    """
    assert draft.rows is not None
    weights, left = torch.ones_like(p[:, 0]), p.clone()
    for level in levels(draft.parents or ()):
        nodes = torch.tensor(level, device=p.device)
        rows, tokens = draft.rows[nodes], draft.tokens[nodes]
        chances = left[rows, tokens] / q[nodes, tokens]
        weights[nodes + 1] = (weights[rows] * chances).clamp(max=1)
        weights[rows], rest = after_rejection(weights[rows], left[rows], q[nodes])
        left[rows] = rest / rest.sum(-1, keepdim=True)
    return weights, left


def levels(parents: Sequence[int]) -> list[list[int]]:
    """The nodes that can be weighed together: by levels, of each level first the first siblings."""
    groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    depths: list[int] = []
    siblings: defaultdict[int, int] = defaultdict(int)
    for node, parent in enumerate(parents):
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        groups[depths[-1], siblings[parent]].append(node)
        siblings[parent] += 1
    return [groups[key] for key in sorted(groups)]
