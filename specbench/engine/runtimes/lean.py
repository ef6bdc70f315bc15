"""The lean form of a model: its parts, and what all its sequences share."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.runtimes import decoder
from specbench.engine.runtimes.masks import Masks
from specbench.engine.runtimes.parts import Parts, read

FIRST = 512  # tokens that a new cache has room for; the room doubles as needed


class Lean:
    """The lean form of a model: its parts, and what all its sequences share (angles, and masks by width)."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.parts: Parts = read(model)
        self.device, self.dtype = model.device, model.dtype
        self.size = model.num_parameters()
        # On a CPU attention is computed in float32 at least, so caches are kept in it.
        self.wide = torch.float32 if self.device.type == "cpu" and self.dtype.itemsize < 4 else self.dtype
        self.masks = Masks(self.parts.attentions, self.device, self.wide)
        self._angles: tuple[Tensor, Tensor] | None = None

    def angles(self, count: int) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines [P, D] of at least the first `count` positions; None for a model without rotary ones."""
        if self.parts.rotary and (self._angles is None or len(self._angles[0]) < count):
            cos, sin = decoder.signed(self.parts.rotary(doubled(count)))
            self._angles = cos.to(self.wide), sin.to(self.wide)
        return self._angles


def doubled(length: int) -> int:
    """The least of FIRST, 2 · FIRST, 4 · FIRST, … that is at least `length`."""
    room = FIRST
    while room < length:
        room *= 2
    return room
