"""A cache that holds the first tokens of a text and its last ones, over the cache of another runtime.

StreamingLLM (arXiv 2309.17453): the first tokens take the attention that is left over (sinks), the last ones tell what
comes next. What lies between is dropped, so memory and the time of a forward do not grow with the text.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.runtimes.static import in_chunks
from specbench.engine.runtimes.types import Lent, Reads, Runner, Runtime

CHUNK = 128  # tokens that are fed at a time, so that a prompt does not fill the cache before it is dropped


class Window(Runtime):
    """Every token reads the first `sink` tokens and the last `recent` ones, itself included.

    Of a text that grew longer, at least `spare` more tokens stay cached: so far it can be rolled back.
    """

    def __init__(self, base: Runtime, sink: int, recent: int, spare: int) -> None:
        self.base, self.sink, self.recent, self.spare = base, sink, recent, spare
        self.name = f"{base.name}, window of {sink} + {recent} + {spare}"
        self.seconds = base.seconds

    @property
    def most(self) -> int:
        """The most tokens that are cached."""
        return self.sink + self.recent + 2 * self.spare + CHUNK

    def runner(self, model: PreTrainedModel) -> "WindowRunner":
        return WindowRunner(self, self.base.runner(model), model.device)


class SavedWindow(NamedTuple):
    """The cache of a window."""

    cache: Any
    length: int
    dropped: int


class WindowRunner:
    """One sequence. Tokens keep the positions that they have in the text."""

    def __init__(self, window: Window, base: Runner, device: torch.device) -> None:
        self.window, self.base, self.device = window, base, device
        self.length = 0  # tokens that were read
        self.dropped = 0  # of them, those after the sinks that are cached no more

    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        """As of any runner. Raises ValueError for what is no chain."""
        if reads:
            raise ValueError("a window holds chains only, no trees")
        if ids.shape[0] > CHUNK:
            return in_chunks(self.forward, ids, keep, hidden, features, CHUNK)
        scored = self.base.forward(ids, keep, hidden, features, self._reads(ids.shape[0]))
        self.length += ids.shape[0]
        self._drop()
        return scored

    def _reads(self, width: int) -> Reads | None:
        """What the next tokens read; None: all tokens before them."""
        sink, end = self.window.sink, self.length + width
        if end <= sink + self.window.recent:
            return None
        first = torch.arange(sink, device=self.device)
        places = torch.cat([first, torch.arange(sink + self.dropped, end, device=self.device)])
        away = places[-width:, None] - places
        allowed = (away >= 0) & ((away < self.window.recent) | (places < sink))
        return Reads(allowed, places, sink, end)

    def _drop(self) -> None:
        """Drop the oldest tokens after the sinks, in place, once there are so many that a copy is worth it."""
        window = self.window
        held = window.sink + window.recent + window.spare
        cached = self.length - self.dropped
        if cached > held + window.spare:
            self.base.move(window.sink, range(cached - held, cached - window.sink))
            self.dropped += cached - held

    def save(self) -> SavedWindow:
        return SavedWindow(self.base.save(), self.length, self.dropped)

    def load(self, saved: SavedWindow) -> None:
        self.base.load(saved.cache)
        self.length, self.dropped = saved.length, saved.dropped

    def lend(self, layers: Sequence[int]) -> Lent:
        raise ValueError("a window has dropped tokens, and lends none")

    def borrow(self, lent: Lent) -> None:
        raise ValueError("a window reads its text itself")

    def truncate(self, length: int) -> None:
        """As of any runner. Raises ValueError for a rollback to tokens whose window was dropped, but for all of it."""
        if length == 0:
            self.dropped = 0
        elif self.dropped and length - self.window.recent < self.window.sink + self.dropped - 1:
            raise ValueError(f"a window cannot roll {self.length} tokens back to {length}: what they read was dropped")
        self.base.truncate(length - self.dropped)
        self.length = length

    def wipe(self) -> None:
        self.base.wipe()

    def move(self, start: int, path: Sequence[int]) -> None:
        raise ValueError("a window holds chains only, no trees")
