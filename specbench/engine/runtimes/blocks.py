"""Attention on a CPU whose bits do not depend on the tokens that are computed with a token.

Rows of queries are padded to a number that the kernels of a matrix product treat alike, keys are read up to a round
number, and values are added up in blocks of positions. A tree's weights are put in the order of the chain that its path
is: the softmax adds them up in that order, and so does each product with values, since what lies between is zero.

In half precision products are in the type of the cache, and spans of values are added up in float32. Scores are rounded
after a number near their maximum is subtracted within the product, so those that count lose least.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.runtimes.parts import Attention
from specbench.engine.runtimes.products import packs
from specbench.engine.runtimes.types import Reads

ROWS = 8  # rows of a product are a multiple
KEYS = 64  # keys that are read are a multiple
SEQUENTIAL = 192  # a product adds up so many rows of values one after another, so zeros between them change no bit
PAIR = 2  # rows of values that a product in half precision adds up together; it has room for SEQUENTIAL pairs
QUERIES = 64  # at a time, so that long prompts take little memory
SPAN = 128  # positions whose values are added up in one product
EVERY = 8  # of so many keys one is looked at for what is subtracted from a row's scores
LEAST = -10000.0  # of that, where none of them is read
SMALL = 2**15  # numbers of keys or values; copying so many takes less time than a product
TOGETHER = 2**19  # numbers of spans that are computed at once and then added up; so many stay in a processor's cache


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


@functools.cache
def multiplies(device: str, dtype: torch.dtype) -> bool:
    """True if a processor has products of a type in half precision. These read denormal numbers as zeros."""
    if dtype.itemsize != 2 or not packs(device, dtype):
        return False
    tiny, large = torch.full((8, 64), 2.0**-130, dtype=dtype), torch.full((64, 64), 2.0**100, dtype=dtype)
    return not torch.mm(tiny, large).any()


def in_halves(cached: Tensor) -> bool:
    return cached.dtype.itemsize == 2 and cached.device.type == "cpu"


def scored(rows: Tensor, keys: Tensor, scale: float, mask: Tensor | None = None, level: Tensor | None = None) -> Tensor:
    """`scale` times rows [B, M, D] times keys [B, S, D], plus a mask that is broadcast to [M, S]: [B, M, S].

    In half precision on a CPU minus a `level` [B, M, 1].
    """
    if not in_halves(keys):
        beta, mask = (0, rows[0, :1, :1]) if mask is None else (1, mask)
        return torch.baddbmm(mask, rows, keys.transpose(1, 2), beta=beta, alpha=scale)
    added = rows.new_zeros(keys.shape[1]) if mask is None else mask
    scores = added - (rows.new_zeros(*rows.shape[:2], 1) if level is None else level)
    if keys[0].numel() < SMALL:
        return scores.baddbmm_(rows, keys.transpose(1, 2), alpha=scale)
    for score, row, key in zip(scores, rows, keys, strict=True):  # one product of all copies a part of a cache
        score.addmm_(row, key.t(), alpha=scale)
    return scores


def level_of(scores: Tensor) -> Tensor:
    """What is subtracted from scores, by the scores [B, M, S] of some keys, -inf if not read: [B, M, 1]."""
    return scores.amax(-1, keepdim=True).clamp_(min=LEAST)


def summed(weights: Tensor, values: Tensor, reach: int, span: int = SPAN) -> Tensor:
    """The first `reach` > 0 values [B, S, D] times weights [B, M, S], one span after the other: [B, M, D].

    In float32 where they are in half precision on a CPU.
    """
    first = min(span, reach)
    if not in_halves(values):
        total, begin = torch.bmm(weights[..., :first], values[:, :first]), first
    else:
        total, begin = torch.bmm(weights[..., :first], values[:, :first]).float(), first
        most = max(1, TOGETHER // total.numel()) * span
        while begin + span <= reach and values.shape[2] * reach >= SMALL:
            end = min(begin + most, reach // span * span)
            for product in _products(weights[..., begin:end], values[:, begin:end], span).unbind(1):
                total += product
            begin = end
    for start in range(begin, reach, span):
        end = min(start + span, reach)
        total += torch.bmm(weights[..., start:end], values[:, start:end])
    return total


def _products(weights: Tensor, values: Tensor, span: int) -> Tensor:
    """values [B, n · span, D] times weights [B, M, n · span], of each span: [B, n, M, D] in float32."""
    count = values.shape[1] // span
    products = weights.new_empty(weights.shape[0], count, weights.shape[1], values.shape[2])
    for product, weight, value in zip(products, weights, values, strict=True):
        torch.bmm(weight.unflatten(1, (count, span)).transpose(0, 1), value.unflatten(0, (count, span)), out=product)
    return products.float()
