"""What prompts begin with alike (few-shot examples, the turns before): each model reads it once, then it is copied."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

LEAST = 32  # tokens; a shorter prefix is not worth a copy


@dataclass(frozen=True)
class Kept:
    """A model's cache after a prefix of `length` tokens, P, and its hidden states [P, D] if they were requested."""

    length: int
    cache: Any  # what the runner's `save` returned
    states: Tensor | None


class Prefixes:
    """The caches of one pair's models after the prefix `tokens` of one task, or of one turn of a conversation.

    Every sequence that begins with the prefix copies its cache. So all methods do the same work for a prompt: a copy,
    and a forward over the rest.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.seconds = 0.0  # total time spent on reading prefixes
        self._kept: weakref.WeakKeyDictionary[PreTrainedModel, dict[tuple[Any, ...], Kept]] = (
            weakref.WeakKeyDictionary()
        )

    def begin(self, tokens: Sequence[int]) -> None:
        """Start on another task or turn, whose prompts begin with `tokens` (perhaps none).

        The last one's caches are forgotten, unless all of its tokens stand here first and more follow: then they grow.
        """
        shared = len(self.tokens)
        if not 0 < shared < len(tokens) or list(tokens[:shared]) != self.tokens:
            self._kept.clear()
        self.tokens = list(tokens)

    def fits(self, tokens: Sequence[int] | Tensor, keep: int) -> bool:
        """True if `tokens` are on the host, begin with the prefix, and their last `keep` (0: all) come after it."""
        shared = len(self.tokens)
        if isinstance(tokens, Tensor):
            return False
        return 0 < shared < len(tokens) and 0 < keep <= len(tokens) - shared and list(tokens[:shared]) == self.tokens

    def kept(self, model: PreTrainedModel) -> dict[tuple[Any, ...], Kept]:
        """The caches of a model, by runtime and hidden states, perhaps of a shorter prefix; the caller adds to it."""
        return self._kept.setdefault(model, {})


def shared_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """The number of tokens that all prompts begin with, leaving each at least one more token; 0 if below LEAST."""
    if len(prompts) < 2:
        return 0
    first, last = min(prompts, key=list), max(prompts, key=list)  # in sorted order, no two others differ earlier
    common = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    shared = min([common, *(len(prompt) - 1 for prompt in prompts)])
    return shared if shared >= LEAST else 0
