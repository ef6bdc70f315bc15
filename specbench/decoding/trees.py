"""Drafts that branch: how a tree of K tokens is tested against the target's logits."""

from collections import defaultdict

import torch

from specbench.decoding.accept import Tested, predicting, weigh
from specbench.decoding.sampling import pick, probabilities, residual
from specbench.decoding.types import Draft, Sampling, Scored, Verdict


def tree_test(draft: Draft, logits: torch.Tensor, sampling: Sampling, rng: torch.Generator) -> Tested:
    """Test the K tokens of a tree that was not drawn at random, against logits [K + 1, V].

    A token's test holds if the scan reaches it: what it follows stands, and all before it that follow the same did
    not pass. T = 0: it passes if it is the argmax. T > 0: with probability p(d) over the mass that the refused ones
    left, and where none passes, the token to emit is drawn from what is left of p: multi-round rejection sampling
    (SpecInfer, arXiv 2305.09781, Algorithm 2) with point masses for q.
    """
    tokens, rows = draft.tokens, draft.rows
    assert rows is not None and draft.probs is None
    if sampling.greedy:
        emit = logits.argmax(-1)
        return Tested(tokens == predicting(draft, emit), emit)
    p = probabilities(logits, sampling)
    p_draft = p[rows, tokens]
    earlier = (rows[:, None] == rows).tril(-1)  # [K, K]: of those that follow the same, the ones before
    needed = torch.rand(len(tokens), generator=rng, device=p.device, dtype=p.dtype) * (
        1 - earlier.to(p.dtype) @ p_draft
    )
    refused = torch.zeros_like(p)
    refused[rows, tokens] = p_draft
    return Tested(needed < p_draft, pick(residual(p, refused), rng), p_draft, needed)


def exact_tree(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
    """From the context on, go to the first following token that passes, until none does. Lossless."""
    weighed = weigh(draft, scored, sampling, rng, tree_test(draft, scored.logits, sampling, rng))
    following = defaultdict(list)
    for i, parent in enumerate(draft.parents or ()):
        following[parent].append(i)
    path: list[int] = []
    at: int | None = -1
    while at is not None:
        branches = following[at]
        assert len({weighed.drafted[i] for i in branches}) == len(branches), "a token is drafted twice in one place"
        at = next((i for i in branches if weighed.passed[i]), None)
        if at is not None:
            path.append(at)
    return weighed.along(tuple(path))
