"""Layers that run apart at the static runtime."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.runtimes import decoder
from specbench.engine.runtimes.decoder import Cache
from specbench.engine.runtimes.lean import Lean
from specbench.engine.runtimes.static import CHUNK, StaticRunner
from specbench.engine.runtimes.types import Reads


class StaticLayers(StaticRunner):
    """The cache has room for the longest layer; `lengths` say how much of it each layer has filled."""

    def __init__(self, lean: Lean) -> None:
        super().__init__(lean)
        self.layers = len(lean.parts.layers)
        self.lengths = [0] * self.layers

    def cached(self, layer: int) -> int:
        return self.lengths[layer]

    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        scored = super().forward(ids, keep, hidden, features, reads)
        self.lengths = [self.length] * self.layers
        return scored

    @torch.inference_mode()
    def run(self, given: Tensor, first: int, last: int) -> Tensor:
        width, cached = given.shape[0], self.lengths[first]
        if width > CHUNK:
            return torch.cat([self.run(part, first, last) for part in given.split(CHUNK)])
        lean, end = self.lean, cached + width
        self.reserve(end)
        step = lean.masks.block(width, cached, None)
        h = given if first else decoder.embedded(lean.parts, given, step)
        turn = decoder.turns(lean.angles(end), step)
        for state in decoder.through(lean.parts, h, step, self.cache, turn, first, last):
            h = state
        self.lengths[first:last] = [end] * (last - first)
        self.length = max(self.lengths)
        return h

    @torch.inference_mode()
    def output(self, states: Tensor) -> Tensor:
        parts = self.lean.parts
        return parts.output(parts.norm(states))

    def load(self, saved: Cache) -> None:
        super().load(saved)
        self.lengths = [self.length] * self.layers

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self.lengths = [min(cached, length) for cached in self.lengths]

    def move(self, start: int, path: Sequence[int]) -> None:
        super().move(start, path)
        self.lengths = [self.length] * self.layers
