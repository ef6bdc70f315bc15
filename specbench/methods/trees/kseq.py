"""K-SEQ: SpecTr's rule for several tokens that were drawn independently in one place (arXiv 2310.15141). Lossless.

Each of k tokens in turn is accepted with the probability min(1, p / (ρ q)). The least ρ that leaves a distribution is
the root of 1 - (1 - β(ρ))^k = ρ β(ρ), with β(ρ) = Σ min(p / ρ, q).
"""

from collections import Counter

import torch
from torch import Tensor

from specbench.engine.accept import Tested, weigh
from specbench.engine.sampling import pick, probabilities
from specbench.engine.trees import exact_tree, first_path
from specbench.engine.types import Draft, Sampling, Scored, Verdict

HALVINGS = 30  # any ρ at or above the root is lossless; so many halvings are 1e-9 of its range above it


def kseq(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
    """Judge a tree whose siblings were all drawn from one distribution; trees that were not drawn by the exact rule.

    A token that was drawn twice in one place may be accepted in its second turn; its path goes on under the first.
    """
    if sampling.greedy or draft.probs is None:
        return exact_tree(draft, scored, sampling, rng)
    tested = kseq_test(draft, draft.probs, probabilities(scored.logits, sampling), rng)
    weighed = weigh(draft, scored, sampling, rng, tested)
    return weighed.along(first_path(weighed))


def kseq_test(draft: Draft, q: Tensor, p: Tensor, rng: torch.Generator) -> Tested:
    """Test the K tokens of a tree, drawn from q [K, V], against p [K + 1, V] after the context and after each token."""
    p_draft, scaled, rest = kseq_chances(draft, q, p)
    needed = torch.rand(len(scaled), generator=rng, device=p.device, dtype=p.dtype) * scaled
    return Tested(needed < p_draft, pick(rest, rng), p_draft, needed)


def kseq_chances(draft: Draft, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """p(d) and ρ q(d) [K], of which each token passes with min(1, p / (ρ q)); what is left [K + 1, V] if none does."""
    parents, rows = draft.parents, draft.rows
    assert parents is not None and rows is not None
    counts = Counter(parents)
    firsts = [parents.index(parent) for parent in counts]  # a child of each parent
    at = torch.tensor(firsts, device=p.device)
    drawn = torch.tensor(list(counts.values()), device=p.device, dtype=p.dtype)
    rho, left = split(p[rows[at]], q[at], drawn)
    scale, rest = torch.ones_like(p[:, 0]), p.clone()
    scale[rows[at]], rest[rows[at]] = rho, left
    return p[rows, draft.tokens], scale[rows] * q.gather(-1, draft.tokens[:, None])[:, 0], rest


def split(p: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """ρ [n] for k [n] tokens from q [n, V] against p [n, V], and what is left if none is accepted, not normalised."""
    low, high = torch.ones_like(k), k.clone()
    for _ in range(HALVINGS if int(k.max()) > 1 else 0):
        middle = (low + high) / 2
        overlap = torch.minimum(p / middle[:, None], q).sum(-1)
        above = 1 - (1 - overlap) ** k <= middle * overlap
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    shared = torch.minimum(p / high[:, None], q)
    overlap = shared.sum(-1)
    accepted = torch.where(overlap > 0, (1 - (1 - overlap) ** k) / overlap, 0.0)
    rest = (p - accepted[:, None] * shared).clamp_(min=0)
    return high, torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)
