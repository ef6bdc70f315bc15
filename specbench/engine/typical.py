"""Typical acceptance: what the target finds typical stands, whatever the draft's q. Lossy at T > 0.

Medusa, arXiv 2401.10774, section 2.3.1.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from specbench.engine.accept import exact_test, predicting_rows, weigh
from specbench.engine.sampling import pick, probabilities
from specbench.engine.trees import exact_draft, tree_test
from specbench.engine.types import Draft, Sampling, Scored, Verdict

INSIDE = 1e-5  # what the authors' code adds to p within the logarithm of the entropy

Bonus = Literal["likeliest", "drawn"]


@dataclass(frozen=True)
class Typical:
    """Accept the longest path of tokens with p(d) > min(ε, δ exp(-H(p))); of equally long ones the likeliest.

    Of a chain, that is all tokens before the first one that does not stand. p is the target's at the temperature that
    is sampled at; at T = 0 the rule is exact matching. The token after the path is the likeliest of p, or drawn from
    all of it: no token is rejected at random, so there is no residual. Rescues are tokens of the path that the exact
    rule, with the same random numbers, would have rejected.
    """

    epsilon: float
    delta: float
    bonus: Bonus = "likeliest"

    def __call__(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        if sampling.greedy:
            return exact_draft(draft, scored, sampling, rng)
        after = probabilities(scored.logits, sampling)  # [K + 1, V]
        p = predicting_rows(draft, after)  # [K, V]
        test = exact_test if draft.parents is None else tree_test
        tested = test(draft, scored.logits, sampling, rng)
        if self.bonus == "likeliest":
            tested = replace(tested, emit=after.argmax(-1))
        elif draft.parents is None or draft.probs is not None:  # else it is p's own token
            tested = replace(tested, emit=pick(after, rng))
        stands = typical(draft.tokens, p, self.epsilon, self.delta)
        chances = p.gather(-1, draft.tokens[:, None])[:, 0].log()
        weighed = weigh(draft, scored, sampling, rng, tested, [stands, chances])
        kept, logs = weighed.columns
        paths: dict[int, tuple[int, float, tuple[int, ...]]] = {-1: (0, 0.0, ())}  # length, log-probability, nodes
        parents = range(-1, len(kept) - 1) if weighed.parents is None else weighed.parents
        for node, parent in enumerate(parents):
            if kept[node] and parent in paths:
                length, log, path = paths[parent]
                paths[node] = (length + 1, log + logs[node], (*path, node))
        best = max(paths.values(), key=lambda reached: reached[:2])[2]
        return weighed.along(best, tuple(node for node in best if not weighed.passed[node]))


def typical(tokens: Tensor, p: Tensor, epsilon: float, delta: float) -> Tensor:
    """True [K] where the target's p [K, V] finds a token typical: p(d) > min(ε, δ exp(-H(p)))."""
    entropy = -(p * (p + INSIDE).log()).sum(-1)
    least = (delta * (-entropy).exp()).clamp(max=epsilon)
    return p.gather(-1, tokens[:, None])[:, 0] > least
