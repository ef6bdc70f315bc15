"""Drafts that branch: how a tree of K tokens is tested against the target's logits."""

from collections import defaultdict

import torch
from torch import Tensor

from specbench.decoding.accept import Tested, predicting, weigh
from specbench.decoding.sampling import draw, pick, probabilities, residual
from specbench.decoding.types import Draft, Sampling, Scored, Verdict


def tree_test(draft: Draft, logits: Tensor, sampling: Sampling, rng: torch.Generator) -> Tested:
    """Test the K tokens of a tree against logits [K + 1, V] behind the context and behind each of them.

    A token's test holds if the scan reaches it: what it follows stands, and all before it that follow the same did
    not pass. A tree that was not drawn at random needs one token of the target behind each node: it is the only child
    that passes, or what is emitted if there is no such child. One that was: `recursive_test`.
    """
    if draft.probs is None or sampling.greedy:
        emit, _ = draw(logits, sampling, rng)
        return Tested(draft.tokens == predicting(draft, emit), emit)
    return recursive_test(draft, draft.probs, probabilities(logits, sampling), rng)


def recursive_test(draft: Draft, q: Tensor, p: Tensor, rng: torch.Generator) -> Tested:
    """Recursive rejection sampling: test tokens that were drawn from q [K, V] against the target's p [K + 1, V].

    The tokens that follow the same one are tested in their order: each passes with probability min(1, p(d) / q(d)), and
    if it does not, p becomes norm((p - q)₊) for the next; what is left behind the last is emitted from. Row i of q is
    what the i-th token was drawn from, given the tokens before it that follow the same: the draft's own distribution
    each time (multi-round rejection sampling: SpecInfer, arXiv 2305.09781, Algorithm 2), or without those that were
    drawn (recursive rejection sampling: RSD, arXiv 2402.14160, Algorithm 1). Lossless for both.
    """
    assert draft.rows is not None
    left = p.clone()  # [K + 1, V]: of each distribution, what its tests so far have left
    tokens, p_draft, q_draft = draft.tokens, torch.zeros_like(q[:, 0]), q.gather(-1, draft.tokens[:, None])[:, 0]
    for nodes in draft.turns:
        rows = draft.rows[nodes]
        p_draft[nodes] = left[rows, tokens[nodes]]
        rest = residual(left[rows], q[nodes])
        left[rows] = rest / rest.sum(-1, keepdim=True)
    needed = torch.rand(len(tokens), generator=rng, device=p.device, dtype=p.dtype) * q_draft
    return Tested(needed < p_draft, pick(left, rng), p_draft, needed)


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
        distinct = len({weighed.drafted[i] for i in branches}) == len(branches)
        assert distinct or draft.probs is not None, "a token is drafted twice in one place"
        at = next((i for i in branches if weighed.passed[i]), None)
        if at is not None:
            path.append(at)
    return weighed.along(tuple(path))
