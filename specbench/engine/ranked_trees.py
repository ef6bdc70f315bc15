"""Trees whose nodes are ranks: which of a head's likeliest tokens stand where is settled before anything is drafted.

Medusa (arXiv 2401.10774, section 2.3.3): the node at depth d with rank r is taken to be right as often as the r-th
token of head d was on other texts, whatever stands before it. The best tree of a size follows greedily.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

Path = tuple[int, ...]  # of ranks, from the first level on


def best_paths(accuracies: Sequence[Sequence[float]], nodes: int) -> list[Path]:
    """The nodes of the tree that is expected to be accepted furthest, at most `nodes` of them, level by level.

    `accuracies` [M][k] are how often the token of each rank is right, by head; they are taken not to rise with the
    rank. A node's worth is the product along its path, and what is worth nothing is left out but for the first node.
    Then a node's parent and the siblings of lower ranks are worth at least as much, so the best nodes are a tree.
    """
    falling = [list(accumulate(row, min)) for row in accuracies]
    chosen: list[Path] = []
    waiting: list[tuple[float, int, Path]] = [(-falling[0][0], 1, (0,))]
    while waiting and len(chosen) < nodes:
        worth, depth, path = heapq.heappop(waiting)
        if not worth and chosen:
            break
        chosen.append(path)
        rank = path[-1]
        if rank + 1 < len(falling[depth - 1]) and (here := falling[depth - 1][rank]):
            heapq.heappush(waiting, (worth / here * falling[depth - 1][rank + 1], depth, (*path[:-1], rank + 1)))
        if depth < len(falling):
            heapq.heappush(waiting, (worth * falling[depth][0], depth + 1, (*path, 0)))
    return sorted(chosen, key=lambda path: (len(path), path))


@dataclass(frozen=True)
class Level:
    """The m nodes of one level, by their parents among the e nodes of the level before that have children."""

    rows: Tensor  # [m]: of the parent, from 0 to e - 1; at the first level 0
    ranks: Tensor  # [m]
    expanded: Tensor  # [e of this level]: the nodes that have children
    width: int  # the highest rank + 1


@dataclass(frozen=True)
class RankedTree:
    """K nodes, level by level; siblings follow one another in the order of their ranks."""

    parents: tuple[int, ...]  # [K], as in a draft
    depths: Tensor  # [K], on the device; 0 for the first level
    ranks: Tensor  # [K], on the device
    levels: tuple[Level, ...]

    @property
    def width(self) -> int:
        """The highest rank of all + 1."""
        return max(level.width for level in self.levels)


def ranked_tree(paths: Sequence[Path], device: torch.device) -> RankedTree:
    """The tree of some paths, each after its parent, as `best_paths` orders them."""
    places = {path: number for number, path in enumerate(paths)}
    expanded = {path[:-1] for path in paths}
    parents = tuple(places[path[:-1]] if len(path) > 1 else -1 for path in paths)

    def on_device(numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=device)

    levels: list[Level] = []
    rows_of: dict[Path, int] = {(): 0}
    for depth in range(1, max(map(len, paths)) + 1):
        here = [path for path in paths if len(path) == depth]
        having = [number for number, path in enumerate(here) if path in expanded]
        ranks = [path[-1] for path in here]
        levels.append(
            Level(on_device([rows_of[path[:-1]] for path in here]), on_device(ranks), on_device(having), max(ranks) + 1)
        )
        rows_of = {here[number]: row for row, number in enumerate(having)}
    return RankedTree(
        parents, on_device([len(path) - 1 for path in paths]), on_device([path[-1] for path in paths]), tuple(levels)
    )
