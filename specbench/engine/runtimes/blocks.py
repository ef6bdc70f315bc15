"""Attention on a CPU whose bits do not depend on the tokens that are computed with a token.

Rows of queries are padded to a number that the kernels of a matrix product treat alike, keys are read up to a round
number, and values are added up in blocks of positions. A tree's weights are put in the order of the chain that its path
is: the softmax adds them up in that order, and so does each product with values, since what lies between is zero.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.runtimes.parts import Attention
from specbench.engine.runtimes.spans import EVERY, SPAN, in_halves, level_of, scored, summed
from specbench.engine.runtimes.types import Reads

ROWS = 8  # rows of a product are a multiple
KEYS = 64  # keys that are read are a multiple
SEQUENTIAL = 192  # a product adds up so many rows of values one after another, so zeros between them change no bit
PAIR = 2  # rows of values that a product in half precision adds up together; it has room for SEQUENTIAL pairs
QUERIES = 64  # at a time, so that long prompts take little memory


class TreeSpan(NamedTuple):
    """One span of positions of a tree's tokens: where their weights go, and the values that they weigh."""

    positions: slice  # of the weights that follow the sealed spans
    rows: slice | Tensor  # of the cache
    targets: Tensor  # [M, positions]: the row of each weight, counted within `rows`


class Paths(NamedTuple):
    """What some nodes of a tree read, by position."""

    sealed: int  # so many positions, whole spans of the context, are those of all nodes
    order: Tensor  # [M, W]: the rows of the cache, counted from `sealed`, by position
    tails: Sequence[TreeSpan]


@dataclass(frozen=True)
class Part:
    """Some queries of a block."""

    queries: slice | Tensor
    reach: int  # rows of the cache that are read
    masks: dict[int | None, Tensor]  # by window [M, positions], added to scores
    paths: Paths | None = None  # of a tree's nodes; None: the rows of the cache are in the order of positions


@dataclass(frozen=True)
class Blocks:
    """A block of one sequence."""

    rows: slice
    places: slice | Tensor
    parts: Sequence[Part]

    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys[:, self.rows] = k.transpose(0, 1)
        values[:, self.rows] = v.transpose(0, 1)
        if len(self.parts) == 1:
            return _attended(layer, q, keys, values, self.parts[0])
        return torch.cat([_attended(layer, q[part.queries], keys, values, part) for part in self.parts])


def _attended(layer: Attention, q: Tensor, keys: Tensor, values: Tensor, part: Part) -> Tensor:
    """Attention [n, H D] of queries [n, H, D] over keys and values [K, S, D]; queries that share keys become rows."""
    n, groups, size, mask = q.shape[0], layer.groups, layer.size, part.masks[layer.window]
    used, count = layer.heads // groups * n, mask.shape[0]
    rows = (q.new_empty if count == used else q.new_zeros)(groups, count, size)
    rows[:, :used].view(groups, -1, n, size).copy_(q.view(n, groups, -1, size).permute(1, 2, 0, 3))
    weights = _weights(layer, rows, keys[:, : part.reach], mask, part.paths)
    sealed = part.paths.sealed if part.paths else part.reach
    attended = summed(weights, values, sealed) if sealed else torch.zeros(())
    for tail in part.paths.tails if part.paths else ():
        chosen, at = values[:, tail.rows], weights[..., tail.positions]
        placed = weights.new_zeros(groups, count, chosen.shape[1])
        placed.scatter_add_(-1, tail.targets.expand(groups, -1, -1), at)
        attended = attended + summed(placed, chosen, chosen.shape[1], chosen.shape[1])
    return attended[:, :used].reshape(groups, -1, n, size).permute(2, 0, 1, 3).reshape(n, -1)


def _weights(layer: Attention, rows: Tensor, keys: Tensor, mask: Tensor, paths: Paths | None) -> Tensor:
    """The weights [K, M, positions] of rows [K, M, D] over keys [K, S, D]."""
    if layer.softcap:
        scores = _scores(layer, rows, keys, None, paths)
        return (torch.tanh(scores / layer.softcap) * layer.softcap + mask).softmax(-1)
    level = level_of(_scores(layer, rows, keys, mask, paths, EVERY)) if in_halves(keys) else None
    return _scores(layer, rows, keys, mask, paths, 1, level).softmax(-1)


def _scores(
    layer: Attention,
    rows: Tensor,
    keys: Tensor,
    mask: Tensor | None,
    paths: Paths | None,
    every: int = 1,
    level: Tensor | None = None,
) -> Tensor:
    """The scores [K, M, positions] of rows [K, M, D] with keys [K, S, D], at every position or fewer."""
    mask = None if mask is None else mask[:, ::every]
    if not paths:
        return scored(rows, keys[:, ::every], layer.scale, mask, level)
    later = scored(rows, keys[:, paths.sealed :], layer.scale, level=level)
    scores = later.gather(-1, paths.order[:, ::every].expand(len(later), -1, -1))
    if paths.sealed:
        context = scored(rows, keys[:, : paths.sealed : every], layer.scale, level=level)
        scores = torch.cat([context, scores], -1)
    return scores if mask is None else scores + mask


def round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def row_mask(mask: Tensor, share: int) -> Tensor:
    """The mask [M, S] of all rows, from that of the queries [n, S]; rows that are padding read everything."""
    used = share * mask.shape[0]
    rows = mask.new_zeros(round_up(used, ROWS), mask.shape[1])
    rows[:used].view(share, *mask.shape).copy_(mask)
    return rows


def parts_of(width: int) -> Iterator[slice]:
    """Slices of at most QUERIES queries each."""
    return (slice(start, min(start + QUERIES, width)) for start in range(0, width, QUERIES))


def is_tree(reads: Reads) -> bool:
    """True if every token reads the whole context and a path after it, whose positions follow one another."""
    inner = reads.allowed[:, reads.root :]
    depth = reads.places[-inner.shape[0] :] - reads.root + 1
    return bool((inner.sum(1) == depth).all()) and bool(reads.allowed[:, : reads.root].all())


class PlacedTree(NamedTuple):
    """A tree's tokens by their positions."""

    sealed: int
    order: Tensor  # [n, W]: rows of the cache, counted from `sealed`; 0 where nothing is read
    read: Tensor  # [n, W] bool

    @classmethod
    def of(cls, reads: Reads) -> "PlacedTree":
        width, root = reads.allowed.shape[0], reads.root
        sealed = root // SPAN * SPAN
        index = torch.zeros(width, round_up(int(reads.places[-width:].max()) + 1 - sealed, KEYS), dtype=torch.long)
        index[:, : root - sealed] = torch.arange(root - sealed)
        node, row = reads.allowed[:, root:].nonzero(as_tuple=True)
        index[node, reads.places[root + row] - sealed] = root - sealed + row
        read = torch.arange(index.shape[1]) <= (reads.places[-width:] - sealed)[:, None]
        return cls(sealed, index, read)

    def groups(self, total: int) -> Iterator[slice]:
        """Slices of nodes whose paths have at most SEQUENTIAL rows of the cache in each span; `total` rows follow."""
        width = self.order.shape[0]
        if total <= SEQUENTIAL:
            yield from parts_of(width)
            return
        start, used = 0, torch.zeros(self.order.shape[1], total, dtype=torch.bool)
        for node in range(width):
            more = used.clone()
            more[torch.arange(len(more))[self.read[node]], self.order[node][self.read[node]]] = True
            most = max(int(part.any(0).sum()) for part in more.split(SPAN))
            if node > start and (most > SEQUENTIAL or node - start == QUERIES):
                yield slice(start, node)
                start, more = node, more.zero_()
                more[torch.arange(len(more))[self.read[node]], self.order[node][self.read[node]]] = True
            used = more
        yield slice(start, width)

    def paths(self, nodes: slice, total: int, share: int, unit: int) -> Paths:
        """What these nodes read. Rows of values are added up `unit` at a time."""
        order, read = self.order[nodes], self.read[nodes]
        tails = []
        for start in range(0, order.shape[1], SPAN):
            positions = slice(start, start + SPAN)
            shifted = slice(self.sealed + start, self.sealed + start + SPAN)
            rows: slice | Tensor = slice(self.sealed, self.sealed + total)
            at = order[:, positions]
            if unit > 1 or total > SEQUENTIAL:
                chosen, at = _chosen(at, read[:, positions], unit)
                if not len(chosen):
                    continue
                rows = self.sealed + chosen
            tails.append(TreeSpan(shifted, rows, _repeated(at, share)))
        return Paths(self.sealed, _repeated(order, share), tails)


def _chosen(order: Tensor, read: Tensor, unit: int) -> tuple[Tensor, Tensor]:
    """Rows in an order in which `unit` that follow one another on a path do so, and where those of each path are there.

    `order` [n, W] are the rows of paths by position, of which `read` ones count.
    """
    groups = order.masked_fill(~read, -1).unflatten(1, (-1, unit))
    some = groups[..., 0] >= 0
    distinct, place = groups[some].unique(dim=0, return_inverse=True)
    targets = torch.zeros_like(groups)
    targets[some] = unit * place[:, None] + torch.arange(unit)
    return torch.where(distinct < 0, distinct[:, :1], distinct).flatten(), targets.flatten(1)


def _repeated(index: Tensor, share: int) -> Tensor:
    """Indices [M, W] of all rows of queries, from those of the queries [n, W]."""
    used = share * index.shape[0]
    rows = index.new_zeros(round_up(used, ROWS), index.shape[1])
    rows[:used].view(share, *index.shape).copy_(index)
    return rows
