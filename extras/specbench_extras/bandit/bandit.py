"""A bandit learns the draft length of each round from the draft's confidence and entropy (as SpecKV). Lossless."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specbench.engine.lengths import DraftToken, Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.types import Verdict
from specbench.methods.chains.sps import adaptive
from specbench.methods.drafting import ChoiceSettings

Floats = NDArray[np.float64]


class Settings(ChoiceSettings):
    draft_cost: float = Field(gt=0, description="time of a draft forward over a target forward (c)")
    alpha: float = Field(ge=0, description="standard deviations added to the expected tokens of a length; 0: none")


class Bandit(Lengths):
    """Choose a length from `lengths` after the first drafted token (SpecKV's decision, arXiv 2605.02888).

    SpecKV trains a small network beforehand. This policy learns while decoding, by LinUCB (Li et al., arXiv 1003.0146,
    Algorithm 1): for each length, a linear model of the tokens that a round commits, with features (1, q(d_1), H(q_1)).
    It chooses the length K that maximises

        expected tokens + alpha · standard deviation - ρ (1 + c K),

    where c is the cost of a draft forward in target forwards, and ρ the tokens per cost of all rounds so far; so in the
    long run it maximises tokens per time. Ties go to the shorter length. A length that was never tried is expected to
    be accepted whole (K + 1 tokens), so each one gets tried. Learning goes on from text to text of a task.
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
        self.arm = -1
        return gamma

    def enough(self, step: int, token: DraftToken) -> bool:
        if step == 1:
            self.features = np.array([1.0, float(token.chance()), token.entropy()])
            self.arm = self.choose(self.features)
        return step >= self.lengths[self.arm]

    def choose(self, features: Floats) -> int:
        """The index of the length with the highest upper bound, for features [3]."""
        inverse = np.linalg.inv(self.gram)
        expected = np.einsum("kij,kj->ki", inverse, self.sums) @ features
        spread = np.sqrt(np.einsum("i,kij,j->k", features, inverse, features))
        costs = 1 + self.draft_cost * np.array(self.lengths)
        rate = self.tokens / self.cost if self.cost else 0.0
        return int(np.argmax(expected + self.alpha * spread - rate * costs))

    def observe(self, verdict: Verdict) -> None:
        """Learn from a round, in place. A draft that an end token cut short counts like the others."""
        committed, cost = verdict.accepted + 1, 1 + self.draft_cost * len(verdict.drafted)
        self.tokens, self.cost = self.tokens + committed, self.cost + cost
        if self.arm >= 0:
            self.gram[self.arm] += np.outer(self.features, self.features)
            self.sums[self.arm] += committed * self.features


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return Bandit(settings.choices, settings.draft_cost, settings.alpha)


build = adaptive(lengths)
