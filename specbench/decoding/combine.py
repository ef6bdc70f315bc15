"""Collaborative decoding: how several models' views of the next token become one distribution r = C(q, …, p).

CoS (arXiv 2502.01662), Eq. 3 to 5. What is combined are probabilities, behind temperature, top-k and top-p of each
model, or raw logits, which are combined first and tempered and cut then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from specbench.decoding.sampling import pick, probabilities, wide
from specbench.decoding.types import Sampling

Level = Literal["probabilities", "logits"]
Function = Callable[[Sequence[Tensor]], Tensor]  # n tensors [k, V], in the members' order -> [k, V]
PLAIN = Sampling(1.0)  # temperature 1, nothing cut


@dataclass(frozen=True)
class Combination:
    """A combination function and what of each model it takes; those of one `key` are the same."""

    key: tuple[object, ...]
    level: Level
    function: Function = field(compare=False)

    def rows(self, logits: Tensor, sampling: Sampling) -> Tensor:
        """What is kept of a model's logits [k, V] to be combined later [k, V].

        Probabilities at T = 0 are those at T = 1: one-hot ones would leave of the weights no more than a vote.
        """
        if self.level == "logits":
            return wide(logits)
        return probabilities(logits, PLAIN if sampling.greedy else sampling)

    def proposal(self, rows: Tensor, sampling: Sampling) -> Tensor:
        """The distributions q [k, V] that a model proposes from, of its own `rows`; T > 0."""
        return probabilities(rows, sampling) if self.level == "logits" else rows

    def combined(self, rows: Sequence[Tensor], sampling: Sampling) -> Tensor:
        """The combined distributions r [k, V] of all models' rows; at T = 0 scores whose argmax is the token."""
        found = self.function(rows)
        return found if sampling.greedy or self.level == "probabilities" else probabilities(found, sampling)

    def choose(self, rows: Sequence[Tensor], sampling: Sampling, rng: torch.Generator) -> Tensor:
        """A token [k] for each row, drawn from r (T > 0) or its argmax."""
        found = self.combined(rows, sampling)
        return found.argmax(-1) if sampling.greedy else pick(found, rng)


def weighted(weights: Sequence[float]) -> Combination:
    """Weighted ensemble of n models, r = Σ w_i p_i (Eq. 4: λ q + (1 - λ) p)."""
    key = ("weighted", *weights)
    if len(weights) == 2:  # one pass over V instead of three
        first = weights[0]
        return Combination(key, "probabilities", lambda rows: torch.lerp(rows[1], rows[0], first))
    return Combination(key, "probabilities", lambda rows: _weighted_sum(rows, weights))


def contrastive(mu: float) -> Combination:
    """Contrastive decoding of an amateur q and an expert p, softmax(l_p - μ l_q) (Eq. 5), without a mask."""
    return Combination(("contrastive", mu), "logits", lambda rows: torch.sub(rows[1], rows[0], alpha=mu))


def realigned(strength: float) -> Combination:
    """Decoding-time realignment of a reference q and an aligned p, softmax(λ l_p + (1 - λ) l_q) (arXiv 2402.02992)."""
    return Combination(("realigned", strength), "logits", lambda rows: torch.lerp(rows[0], rows[1], strength))


def own(name: str, source: str, level: Level, function: Function) -> Combination:
    """A user's function, by its name and the hash of its source; probabilities are made to sum to 1 exactly."""

    def normalised(rows: Sequence[Tensor]) -> Tensor:
        found = function(rows)
        return found / found.sum(-1, keepdim=True)

    return Combination(("own", name, source), level, function if level == "logits" else normalised)


def _weighted_sum(rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    found = rows[0] * weights[0]
    for row, weight in zip(rows[1:], weights[1:], strict=True):
        found.add_(row, alpha=weight)
    return found
