"""A draft length for each round from what the draft itself shows: a linear bandit over its confidence and entropy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench.decoding.lengths import Drawn, Lengths
from specbench.decoding.types import Verdict

Floats = NDArray[np.float64]


class Bandit(Lengths):
    """Choose a length from `lengths` behind the first drafted token (SpecKV's decision, arXiv 2605.02888).

    SpecKV trains a small network beforehand; this learns while decoding, by LinUCB with one linear model a length
    (Li et al., arXiv 1003.0146, Algorithm 1) of the tokens that a round commits: features (1, q(d_1), H(q_1)),
    deviations weighed by `alpha`. Chosen is the length K of the highest bound less ρ (1 + c K): c is a draft forward's
    cost in target forwards, and ρ the tokens per cost of all rounds so far, so that what is maximised in the long run
    is tokens per time. Ties go to the shorter. A length that was never tried is thought to stand whole (K + 1 tokens),
    so that each is tried. It learns from text to text of a task.
    """

    looks = True

    def __init__(self, lengths: tuple[int, ...], draft_cost: float, alpha: float) -> None:
        self.lengths, self.draft_cost, self.alpha = tuple(sorted(lengths)), draft_cost, alpha
        self.reset()

    def reset(self) -> None:
        arms = len(self.lengths)
        sums = [[length + 1.0, 0.0, 0.0] for length in self.lengths]
        self.restore({"gram": [np.eye(3).tolist()] * arms, "sums": sums, "tokens": 0.0, "cost": 0.0})

    def state(self) -> Any:
        return {"gram": self.gram.tolist(), "sums": self.sums.tolist(), "tokens": self.tokens, "cost": self.cost}

    def restore(self, state: Any) -> None:
        self.gram, self.sums = np.array(state["gram"]), np.array(state["sums"])  # [arms, 3, 3], [arms, 3]
        self.tokens, self.cost = float(state["tokens"]), float(state["cost"])

    def most(self, gamma: int, context: int) -> int:
        self.chosen = -1
        return gamma

    def enough(self, step: int, drawn: Drawn) -> bool:
        if step == 1:
            self.features = np.array([1.0, float(drawn.chance()), drawn.entropy()])
            self.chosen = self.choose(self.features)
        return step >= self.lengths[self.chosen]

    def choose(self, features: Floats) -> int:
        """Which of the lengths has the highest upper bound of what it brings, for features [3]."""
        inverse = np.linalg.inv(self.gram)
        expected = np.einsum("kij,kj->ki", inverse, self.sums) @ features
        spread = np.sqrt(np.einsum("i,kij,j->k", features, inverse, features))
        costs = 1 + self.draft_cost * np.array(self.lengths)
        rate = self.tokens / self.cost if self.cost else 0.0
        return int(np.argmax(expected + self.alpha * spread - rate * costs))

    def observe(self, verdict: Verdict) -> None:
        """Learn from a round, in place; one that ended before its length, at an end token, counts like the others."""
        committed, cost = verdict.accepted + 1, 1 + self.draft_cost * len(verdict.drafted)
        self.tokens, self.cost = self.tokens + committed, self.cost + cost
        if self.chosen >= 0:
            self.gram[self.chosen] += np.outer(self.features, self.features)
            self.sums[self.chosen] += committed * self.features
