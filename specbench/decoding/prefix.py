"""What the prompts of a task begin with alike (few-shot examples): read once by each model, then copied."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

LEAST = 32  # tokens; a shorter beginning is not worth a copy


@dataclass(frozen=True)
class Kept:
    """A model's cache behind a prefix, and the hidden states [P, D] that were asked for with it."""

    cache: Any  # of a runner's `save`
    states: Tensor | None


class Prefixes:
    """Of the models of one pair, for one task at a time. Every sequence that begins with `tokens` copies what is kept.

    So all methods do the same work for a prompt: a copy, and a forward over the rest.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.seconds = 0.0  # that reading prefixes took, in all
        self._kept: weakref.WeakKeyDictionary[PreTrainedModel, dict[tuple[Any, ...], Kept]] = (
            weakref.WeakKeyDictionary()
        )

    def begin(self, tokens: Sequence[int]) -> None:
        """Another task, whose prompts begin with `tokens` (perhaps none): forget what was kept."""
        self._kept.clear()
        self.tokens = list(tokens)

    def fits(self, tokens: Sequence[int] | Tensor, keep: int) -> bool:
        """Whether `tokens`, from the host, begin with the prefix, and their last `keep` (0: all) lie behind it."""
        shared = len(self.tokens)
        if isinstance(tokens, Tensor):
            return False
        return 0 < shared < len(tokens) and 0 < keep <= len(tokens) - shared and list(tokens[:shared]) == self.tokens

    def kept(self, model: PreTrainedModel) -> dict[tuple[Any, ...], Kept]:
        """What is kept of a model, by runtime and hidden states; to be added to."""
        return self._kept.setdefault(model, {})


def shared_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts begin with alike, each with one of its own behind them; 0 if they are few."""
    if len(prompts) < 2:
        return 0
    low, high = min(prompts, key=list), max(prompts, key=list)  # in order, the first and the last differ first
    alike = next((at for at, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
    shared = min([alike, *(len(prompt) - 1 for prompt in prompts)])
    return shared if shared >= LEAST else 0
