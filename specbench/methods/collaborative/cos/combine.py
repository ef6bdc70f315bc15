"""Combination functions: several models' views of the next token become one distribution r = C(q, …, p).

CoS (arXiv 2502.01662), Eq. 3 to 5. A function combines either probabilities, after each model's temperature, top-k and
top-p, or raw logits; then temperature, top-k and top-p apply to the result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from specbench.engine.sampling import pick, probabilities, wide
from specbench.engine.types import Sampling

Level = Literal["probabilities", "logits"]
Function = Callable[[Sequence[Tensor]], Tensor]  # n tensors [k, V], in the members' order -> [k, V]
PLAIN = Sampling(1.0)  # temperature 1, nothing cut


@dataclass(frozen=True)
class KeyedCombination:
    """A combination function and the level that it works on. Combinations with the same `key` are equal."""

    key: tuple[object, ...]
    level: Level
    function: Function = field(compare=False)

    def rows(self, logits: Tensor, sampling: Sampling) -> Tensor:
        """The rows [k, V] that are kept of a model's logits [k, V], to be combined later.

        At T = 0 probabilities are those at T = 1: one-hot ones would turn a weighted ensemble into a vote.
        """
        if self.level == "logits":
            return wide(logits)
        return probabilities(logits, PLAIN if sampling.greedy else sampling)

    def proposal(self, rows: Tensor, sampling: Sampling) -> Tensor:
        """The distributions q [k, V] that a model proposes from, by its own `rows`; T > 0."""
        return probabilities(rows, sampling) if self.level == "logits" else rows

    def combined(self, rows: Sequence[Tensor], sampling: Sampling) -> Tensor:
        """The combined distributions r [k, V] of all models' rows; at T = 0 scores whose argmax is the token."""
        r = self.function(rows)
        return r if sampling.greedy or self.level == "probabilities" else probabilities(r, sampling)

    def choose(self, rows: Sequence[Tensor], sampling: Sampling, rng: torch.Generator) -> Tensor:
        """A token [k] for each row, drawn from r (T > 0) or its argmax."""
        r = self.combined(rows, sampling)
        return r.argmax(-1) if sampling.greedy else pick(r, rng)


def weighted(weights: Sequence[float]) -> KeyedCombination:
    """Weighted ensemble of n models, r = Σ w_i p_i (Eq. 4: λ q + (1 - λ) p)."""
    key = ("weighted", *weights)
    if len(weights) == 2:  # one pass over V instead of three
        first = weights[0]
        return KeyedCombination(key, "probabilities", lambda rows: torch.lerp(rows[1], rows[0], first))
    return KeyedCombination(key, "probabilities", lambda rows: _weighted_sum(rows, weights))


def contrastive(mu: float) -> KeyedCombination:
    """Contrastive decoding of an amateur q and an expert p, softmax(l_p - μ l_q) (Eq. 5), without a mask."""
    return KeyedCombination(("contrastive", mu), "logits", lambda rows: torch.sub(rows[1], rows[0], alpha=mu))


def realigned(strength: float) -> KeyedCombination:
    """Decoding-time realignment of a reference q and an aligned p, softmax(λ l_p + (1 - λ) l_q) (arXiv 2402.02992)."""
    return KeyedCombination(("realigned", strength), "logits", lambda rows: torch.lerp(rows[0], rows[1], strength))


def custom(name: str, source: str, level: Level, function: Function) -> KeyedCombination:
    """A user's function, known by its name and the hash of its source; probabilities are normalised to sum to 1."""

    def normalised(rows: Sequence[Tensor]) -> Tensor:
        r = function(rows)
        return r / r.sum(-1, keepdim=True)

    return KeyedCombination(("own", name, source), level, function if level == "logits" else normalised)


def _weighted_sum(rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = rows[0] * weights[0]
    for row, weight in zip(rows[1:], weights[1:], strict=True):
        total.add_(row, alpha=weight)
    return total
