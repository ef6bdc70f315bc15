"""The lean form of a model: its parts, and what all its sequences share, angles and masks, which are built once."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.runtimes import decoder
from specbench.engine.runtimes.blocks import (
    KEYS,
    PAIR,
    ROWS,
    Blocks,
    Part,
    PlacedTree,
    is_tree,
    multiplies,
    parts_of,
    round_up,
    row_mask,
)
from specbench.engine.runtimes.decoder import FEW, ForwardBlock, SequenceBlock
from specbench.engine.runtimes.eager import additive
from specbench.engine.runtimes.parts import Attention, Parts, read
from specbench.engine.runtimes.types import Reads

FIRST = 512  # tokens that a new cache has room for; the room doubles as needed
LARGE = 1024  # numbers of a token's heads, from which on caches may be halved; our choice, between Qwen's 0.5 and 1.5 B
FIRST_MASKS = 512  # tokens that the first masks are made for; longer ones are made as needed


class Masks:
    """The masks of a lean model's blocks: on a CPU of `Blocks`, elsewhere of a `SequenceBlock`."""

    def __init__(self, attentions: Sequence[Attention], device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.windows = {attention.window for attention in attentions}
        self.share = attentions[0].heads // attentions[0].groups  # query heads that share keys
        self.blocks = device.type == "cpu"
        self._kept: dict[tuple[int, int | None], Tensor] = {}

    def reach(self, end: int) -> int:
        """How many rows of a cache are read where `end` are filled."""
        return round_up(end, KEYS) if self.blocks else end

    def width(self, count: int) -> int:
        """How many queries `count` of a sequence are padded to where several sequences are computed together."""
        return round_up(count, ROWS // math.gcd(ROWS, self.share)) if self.blocks else count

    def block(self, width: int, cached: int, reads: Reads | None) -> ForwardBlock:
        """`width` tokens of one sequence after `cached` ones."""
        end = cached + width
        rows = slice(cached, end)
        places = reads.places[-width:] if reads else rows
        if not self.blocks:
            return SequenceBlock(rows, places, end, self.whole(reads) if reads else self.chain(width, cached))
        if reads is None:
            if width == 1:
                parts = [self._part(slice(0, 1), cached)]
            else:
                parts = [self._part(queries, cached + queries.start) for queries in parts_of(width)]
        elif is_tree(reads):
            parts = self._tree(reads)
        else:
            parts = self._any(reads)
        return Blocks(rows, places, parts)

    def _part(self, queries: slice, cached: int) -> Part:
        """Queries of a chain, the first of which follows `cached` tokens."""
        width = queries.stop - queries.start
        reach = self.reach(cached + width)
        return Part(queries, reach, {window: self._sliced(width, cached, reach, window) for window in self.windows})

    def chain(self, width: int, cached: int) -> dict[int | None, Tensor | None]:
        """Masks [n, cached + n] by window for a chain after `cached` tokens; None: every token reads all rows."""
        masks: dict[int | None, Tensor | None] = {}
        for window in self.windows:
            alone = width == 1 and (window is None or cached < window)
            masks[window] = None if alone else self._sliced(width, cached, cached + width, window)
        return masks

    def _sliced(self, width: int, cached: int, reach: int, window: int | None) -> Tensor:
        """The mask of a chain after `cached` tokens for the first `reach` rows: a view of one that is kept.

        What a token reads depends on distance alone, so masks of all lengths are parts of the longest one.
        """
        kept = self._kept.get((width, window))
        if kept is None or kept.shape[1] < cached + width + KEYS:
            span = FIRST_MASKS
            while span < cached:
                span *= 2
            kept = self._made(width, span if width <= FEW else cached, window)
            if width <= FEW:
                self._kept[width, window] = kept
        before = kept.shape[1] - width - KEYS - cached
        return kept[:, before : before + reach]

    def _made(self, width: int, span: int, window: int | None) -> Tensor:
        places = torch.arange(span + width + KEYS, device=self.device)
        away = places[span : span + width, None] - places
        mask = additive((away >= 0) & (away < (window or len(places))), self.dtype)
        return row_mask(mask, self.share) if self.blocks else mask

    def whole(self, reads: Reads) -> dict[int | None, Tensor | None]:
        """Masks [n, S] by window for any block."""
        fed = reads.places[-reads.allowed.shape[0] :]
        near = {
            window: reads.allowed if window is None else reads.allowed & (fed[:, None] - reads.places < window)
            for window in self.windows
        }
        return {window: additive(allowed, self.dtype) for window, allowed in near.items()}

    def _any(self, reads: Reads) -> list[Part]:
        """Queries that read rows in the order of the cache."""
        width, end = reads.allowed.shape
        reach = self.reach(end)
        padded = {
            window: torch.nn.functional.pad(mask, (0, reach - end), value=-torch.inf)
            for window, mask in self.whole(reads).items()
            if mask is not None
        }
        return [
            Part(queries, reach, {window: row_mask(mask[queries], self.share) for window, mask in padded.items()})
            for queries in parts_of(width)
        ]

    def _tree(self, reads: Reads) -> list[Part]:
        """Nodes of a tree, which read their paths by position."""
        grown, fed = PlacedTree.of(reads), reads.places[-reads.allowed.shape[0] :]
        reach = self.reach(reads.allowed.shape[1])
        places = torch.arange(grown.sealed + grown.order.shape[1])
        away = fed[:, None] - places
        masks = {
            window: additive((away >= 0) & (away < (window or len(places))), self.dtype) for window in self.windows
        }
        total = reach - grown.sealed
        return [
            Part(
                nodes,
                reach,
                {window: row_mask(mask[nodes], self.share) for window, mask in masks.items()},
                grown.paths(nodes, total, self.share, PAIR if self.dtype.itemsize == 2 else 1),
            )
            for nodes in grown.groups(total)
        ]


class Lean:
    """The lean form of a model: its parts, and what all its sequences share (angles, and masks by width)."""

    def __init__(self, model: PreTrainedModel, half: bool = True) -> None:
        """If `half` is false, a CPU keeps caches in float32 at least, and computes attention in it."""
        self.parts: Parts = read(model)
        self.device, self.dtype = model.device, model.dtype
        self.size = model.num_parameters()
        self.wide = torch.float32 if self.device.type == "cpu" and self.dtype.itemsize < 4 else self.dtype
        # In small layers more calls cost more than they save. Nothing tries whether a head's rows are equal.
        large = all(attention.heads * attention.size >= LARGE for attention in self.parts.attentions)
        half = half and large and self.parts.join is None
        self.cached = self.dtype if half and multiplies(self.device.type, self.dtype) else self.wide
        self.halved = self.cached.itemsize < self.wide.itemsize
        self.masks = Masks(self.parts.attentions, self.device, self.cached)
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
