"""How a draft tree of K tokens is tested against the target's logits."""

from collections import defaultdict

import torch
from torch import Tensor

from specbench.engine.accept import Tested, Weighed, exact, predicting_rows, weigh
from specbench.engine.sampling import draw, pick, probabilities, residual
from specbench.engine.types import Draft, Sampling, Scored, Verdict


def tree_test(draft: Draft, logits: Tensor, sampling: Sampling, rng: torch.Generator) -> Tested:
    """Test the K tokens of a tree against logits [K + 1, V] after the context and after each token.

    A token's test counts only if it is reached: its parent is accepted, and no earlier sibling passed. A tree that was
    not drawn at random needs one token of the target after each node: the child that equals it passes, and if there is
    none, it is emitted. For a tree that was drawn, see `recursive_test`.
    """
    if draft.probs is None or sampling.greedy:
        emit, _ = draw(logits, sampling, rng)
        return Tested(draft.tokens == predicting_rows(draft, emit), emit)
    return recursive_test(draft, draft.probs, probabilities(logits, sampling), rng)


def recursive_test(draft: Draft, q: Tensor, p: Tensor, rng: torch.Generator) -> Tested:
    """Recursive rejection sampling: test tokens that were drawn from q [K, V] against the target's p [K + 1, V].

    Siblings are tested in their order. Each passes with probability min(1, p(d) / q(d)); if it does not, p becomes
    norm((p - q)₊) for the next one. If none passes, a draw from the last p is emitted. Row i of q is the distribution
    that token i was drawn from, given its earlier siblings: always the draft's own distribution (multi-round rejection
    sampling: SpecInfer, arXiv 2305.09781, Algorithm 2), or that without the earlier siblings (recursive rejection
    sampling: RSD, arXiv 2402.14160, Algorithm 1). Both are lossless.
    """
    p_draft, q_draft, left = recursive_chances(draft, q, p)
    needed = torch.rand(len(draft.tokens), generator=rng, device=p.device, dtype=p.dtype) * q_draft
    return Tested(needed < p_draft, pick(left, rng), p_draft, needed)


def recursive_chances(draft: Draft, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """p(d) and q(d) [K], of which each token passes with min(1, p / q) where its earlier siblings did not.

    The third result [K + 1, V] is what is left of the target's distributions where no child passes.
    """
    assert draft.rows is not None
    left = p.clone()  # [K + 1, V]: what the tests so far have left of each distribution
    tokens, p_draft, q_draft = draft.tokens, torch.zeros_like(q[:, 0]), q.gather(-1, draft.tokens[:, None])[:, 0]
    for nodes in draft.turns:
        rows = draft.rows[nodes]
        p_draft[nodes] = left[rows, tokens[nodes]]
        rest = residual(left[rows], q[nodes])
        left[rows] = rest / rest.sum(-1, keepdim=True)
    return p_draft, q_draft, left


def exact_tree(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
    """From the context on, go to the first child that passes, until none does. Lossless."""
    weighed = weigh(draft, scored, sampling, rng, tree_test(draft, scored.logits, sampling, rng))
    return weighed.along(first_path(weighed, repeated=draft.probs is not None))


def exact_draft(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
    """The exact rule of a chain or of a tree, whichever a draft is."""
    return (exact if draft.parents is None else exact_tree)(draft, scored, sampling, rng)


def first_path(weighed: Weighed, repeated: bool = True) -> tuple[int, ...]:
    """From the context on, the first child that passes, until none does.

    Where a token is `repeated` in one place, the path goes on under the first of its kind.
    """
    children = defaultdict(list)
    for i, parent in enumerate(weighed.parents or ()):
        children[parent].append(i)
    path: list[int] = []
    node: int | None = -1
    while node is not None:
        siblings = children[node]
        distinct = len({weighed.drafted[i] for i in siblings}) == len(siblings)
        assert distinct or repeated, "a token is drafted twice in one place"
        node = next((i for i in siblings if weighed.passed[i]), None)
        if node is not None:
            node = next(i for i in siblings if weighed.drafted[i] == weighed.drafted[node])
            path.append(node)
    return tuple(path)
