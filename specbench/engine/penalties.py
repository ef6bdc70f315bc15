"""Penalties on tokens that a text has already: logits of a position depend on the tokens before it, as a model's do.

A session with penalties is a model of its own, so a method that is exact for a session is exact under penalties.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specbench.engine.ids import to_device


class Change(Protocol):
    """What changes a session's logits by the tokens before them: `Penalties`, or a constraint. True if it does."""

    def __bool__(self) -> bool: ...

    def __call__(
        self, logits: Tensor, before: Sequence[int], block: Sequence[int], parents: Sequence[int] | None, prompt: int
    ) -> Tensor: ...


@dataclass(frozen=True)
class Penalties:
    """As engines apply them, to raw logits. True if any is on.

    `repetition` (Keskar et al., arXiv 1909.05858) divides positive logits and multiplies negative ones of all tokens of
    prompt and answer. `presence` and `frequency` (OpenAI's API) are subtracted from the logits of the answer's tokens,
    the second as often as a token is there.
    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    def __bool__(self) -> bool:
        return self != Penalties()

    def __call__(
        self, logits: Tensor, before: Sequence[int], block: Sequence[int], parents: Sequence[int] | None, prompt: int
    ) -> Tensor:
        """New logits [n, V] of the last n of the tokens `block`, which follow `before`, a chain or a tree.

        `parents` are indices within `block`, -1 for the end of `before`. The first `prompt` tokens are the prompt.
        """
        penalised = logits.clone()
        if self.repetition != 1:
            seen = _counts(penalised, before, block, parents) > 0
            scaled = torch.where(logits > 0, logits / self.repetition, logits * self.repetition)
            penalised = torch.where(seen, scaled, penalised)
        if self.presence or self.frequency:
            outside = max(0, prompt - len(before))  # tokens of the block that are the prompt's
            counts = _counts(penalised, before[prompt:], block, parents, outside)
            penalised -= self.presence * (counts > 0) + self.frequency * counts
        return penalised


def _counts(
    like: Tensor, before: Sequence[int], block: Sequence[int], parents: Sequence[int] | None, outside: int = 0
) -> Tensor:
    """How often each token is among those that each row has read [n, V]; the first `outside` of the block do not count.

    n and V are those of `like`, whose rows are those of the last n tokens of the block.
    """
    rows, vocabulary = like.shape
    counts = like.new_zeros(vocabulary)
    known = to_device([token for token in before if token < vocabulary], like.device)
    counts.index_add_(0, known, torch.ones_like(known, dtype=like.dtype))
    if parents is None:  # what comes before the last n tokens of a chain is read by all of them
        first = len(block) - rows
        earlier = to_device([token for token in block[outside:first] if token < vocabulary], like.device)
        counts.index_add_(0, earlier, torch.ones_like(earlier, dtype=like.dtype))
        paths = _ones(like, block[first:], outside - first).cumsum(0)
        return counts + paths
    paths = _ones(like.new_empty(len(block), vocabulary), block, outside)
    for node, parent in enumerate(parents):
        if parent >= 0:
            paths[node] += paths[parent]
    return counts + paths[-rows:]


def _ones(like: Tensor, tokens: Sequence[int], outside: int) -> Tensor:
    """A row for each token with a 1 at its place [n, V]; zeros for the first `outside` and for tokens beyond V."""
    ones = torch.zeros_like(like)
    places = [(i, token) for i, token in enumerate(tokens) if i >= outside and token < like.shape[1]]
    if places:
        at, ids = (to_device(list(part), like.device) for part in zip(*places, strict=True))
        ones[at, ids] = 1
    return ones
