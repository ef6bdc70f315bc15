"""Sequoia (Chen et al., arXiv 2402.12374): the best tree of a size, by how often each rank is accepted. Lossless.

The i-th child that is drafted for a place is taken to be accepted with a probability of its rank i alone, wherever the
place is. A tree's expected tokens are then sums of products, and dynamic programming finds the tree that has the most.
Children are drawn without replacement and verified by recursive rejection, as in RSD. Where Sequoia draws evenly from
the tokens that its draft model excludes, trees here end.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from specbench.base.stats import Floats
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Method, Watch
from specbench.methods.rules import TreeSettings
from specbench.methods.trees.rsd import Branching, TreeSpeculation


class Settings(TreeSettings):
    """A tree has a fixed shape: no policy chooses a draft length, and no draft ends at an end token."""

    acceptance: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        min_length=1, description="how often the first, second, … child of an accepted token is accepted"
    )
    nodes: int = Field(ge=1, le=1024, description="the most tokens of the tree")
    gamma: int = Field(ge=1, le=64, description="the most levels of the tree (γ)")


class TreePlan:
    """The best trees of up to `nodes` tokens and `levels` levels, for acceptance rates by rank.

    `expected` [levels + 1, nodes + 2] are the tokens of a round with the best tree of at most so many levels and of
    exactly so many nodes, the last committed token (its root) among them; -inf where there is no such tree.
    """

    def __init__(self, acceptance: Sequence[float], nodes: int, levels: int) -> None:
        self.expected = np.full((levels + 1, nodes + 2), -np.inf)
        self.expected[:, 1] = 1.0  # the root alone: its own token, or the bonus
        self._ranks = np.zeros((levels + 1, nodes + 2), int)  # children of the root of the best tree
        self._last = np.zeros((levels + 1, len(acceptance) + 1, nodes + 2), int)  # nodes below its last child, with it
        for level in range(1, levels + 1):
            worth = self.expected[level - 1]  # of a child's tree
            before = np.full(nodes + 2, -np.inf)  # of trees whose roots have one child fewer
            before[1] = 1.0
            for rank, rate in enumerate(acceptance, 1):
                now = np.full(nodes + 2, -np.inf)
                for size in range(2, nodes + 2):
                    sums = before[size - 1 : 0 : -1] + gained(rate, worth[1:size])
                    best = int(sums.argmax())
                    now[size], self._last[level, rank, size] = sums[best], best + 1
                better = now > self.expected[level]
                self.expected[level][better] = now[better]
                self._ranks[level][better] = rank
                before = now

    def shape(self) -> list[list[int]]:
        """The best tree of all (see `shape_of`)."""
        return self.shape_of(len(self.expected) - 1, int(self.expected[-1].argmax()))

    def shape_of(self, levels: int, size: int) -> list[list[int]]:
        """The children of each node of the best tree of at most so many levels and of `size` nodes with the root.

        Level by level, from the root on; the last level has none. There must be such a tree.
        """
        level = [(levels, size)]  # levels below each node, nodes of its tree
        shape = []
        while level:
            below = [self._subtrees(*node) for node in level]
            shape.append(list(map(len, below)))
            level = [child for children in below for child in children]
        return shape

    def _subtrees(self, levels: int, size: int) -> list[tuple[int, int]]:
        """The levels and nodes of the trees of a root's children, by rank."""
        trees = []
        for rank in range(self._ranks[levels, size], 0, -1):
            last = int(self._last[levels, rank, size])
            trees.append((levels - 1, last))
            size -= last
        return trees[::-1]


def gained(rate: float, worth: Floats) -> Floats:
    """The expected tokens that children with trees of `worth` [n] add; -inf stays so even at a rate of 0."""
    return np.where(np.isfinite(worth), rate * np.maximum(worth, 0), -np.inf)


class Planned(Branching):
    """Draws trees of one shape: the children of each node, level by level."""

    def __init__(self, session: Session, shape: Sequence[Sequence[int]]) -> None:
        super().__init__(session, ())
        self.shape = shape

    def children(self, level: int, nodes: int) -> list[int]:
        return list(self.shape[level])


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    rates = settings.acceptance[: pair.vocabulary]
    nodes = min(settings.nodes, pair.context)  # a larger tree is refused, and takes long to plan
    shape = TreePlan(rates, nodes, settings.gamma).shape()
    drafter = Planned(pair.session("draft", watch), shape)
    levels = len(shape) - 1
    return TreeSpeculation(pair.session("target", watch), drafter, levels, sum(map(sum, shape)), settings.accept())
