"""A tree that a head or a draft model grows, as one CUDA graph: every level is read and every node chosen within it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.runtimes import decoder
from specbench.engine.runtimes.decoder import Cache, SequenceBlock
from specbench.engine.runtimes.eager import additive
from specbench.engine.runtimes.fixed import Fixed
from specbench.engine.runtimes.lean import Lean
from specbench.engine.runtimes.types import LAST

# How a tree grows: logits [V] after the context, and what reads its nodes (`level_reader.Read`) -> tokens [K], parents
# [K] and log-probabilities of paths [K]. It may wait for nothing, and all its shapes are fixed.
Grow = Callable[[Tensor, Callable[[Tensor, Tensor | None], Tensor]], tuple[Tensor, ...]]


class TreeKey(NamedTuple):
    """All that determines a tree in one call, except the values of its inputs."""

    grow: Grow  # the very object: one that is made again is other work
    width: int  # the nodes that are read, of all levels
    reach: int  # how many rows of the cache are read; rows after the sequence are masked
    vocabulary: int


class FixedTree(Fixed):
    """A tree after the rows of a cache. What its first level is chosen by is copied into buffers."""

    def __init__(
        self, lean: Lean, cache: Cache, key: TreeKey, logits: Tensor, states: Tensor | None, ids: Tensor | None
    ) -> None:
        device = lean.device
        self.key, self.lean, self.cache, self.ids = key, lean, cache, ids
        self.angles = lean.angles(key.reach)
        self.logits = torch.empty_like(logits)
        self.states = None if states is None else torch.empty_like(states)
        self.start = torch.zeros((), dtype=torch.long, device=device)  # the row after the context
        self.rows = torch.arange(key.reach, device=device)

    def __call__(self, logits: Tensor, states: Tensor | None, start: int) -> tuple[Tensor, ...]:
        self.logits.copy_(logits)
        if self.states is not None and states is not None:
            self.states.copy_(states)
        self.start.fill_(start)
        return self.results()  # type: ignore[return-value]

    def rewind(self) -> None:
        self.start.zero_()

    def compute(self) -> tuple[Tensor, ...]:
        return tuple(self.key.grow(self.logits, _Levels(self)))


class _Levels:
    """Reads the levels of one tree."""

    def __init__(self, tree: FixedTree) -> None:
        self.tree, self.states = tree, tree.states
        self.count = 0  # the nodes that were read
        self.allowed = tree.rows.new_ones(0, 0, dtype=torch.bool)  # [k, n]: what those read last read of them
        self.level = 0

    def __call__(self, tokens: Tensor, followed: Tensor | None) -> Tensor:
        tree, width = self.tree, len(tokens)
        own = torch.eye(width, dtype=torch.bool, device=tokens.device)
        if followed is None:
            self.allowed = own
            states = None if self.states is None else self.states.expand(width, -1)
        else:
            self.allowed = torch.cat([self.allowed[followed], own], 1)
            states = None if self.states is None else self.states[followed]
        rows = tree.start + torch.arange(self.count, self.count + width, device=tokens.device)
        self.count += width
        places = (tree.start + self.level).expand(width)
        self.level += 1
        step = SequenceBlock(rows, places, tree.key.reach, {None: self._mask()})
        logits, self.states = decoder.run(
            tree.lean.parts,
            tokens if tree.ids is None else tree.ids[tokens],
            step,
            tree.cache,
            tree.angles,
            None,
            () if states is None else LAST,
            states,
        )
        return logits[:, : tree.key.vocabulary]

    def _mask(self) -> Tensor:
        """[k, reach]: the context, then of the tree's rows each node's path. Heads have no windows."""
        tree = self.tree
        after = tree.rows - tree.start  # below 0: the context
        path = (after >= 0) & (after < self.count) & self.allowed[:, after.clamp(0, self.count - 1)]
        return additive((after < 0) | path, tree.lean.cached)
