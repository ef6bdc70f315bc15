"""EAGLE-2's trees (Li et al., arXiv 2406.16858) with the pair's draft model in place of a trained head. Lossless.

A node is worth the draft's probability of the whole path to it. Of each level the worthiest nodes are read, and of all
nodes that were drafted the worthiest are verified.
"""

from collections.abc import Callable
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from specbench.engine.ids import later
from specbench.engine.level_reader import Grown, LevelReader, Read
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Draft, Method, Sampling, Watch
from specbench.methods.heads.eagle3 import grow
from specbench.methods.rules import TreeSettings
from specbench.methods.trees.rsd import TreeDrafter, TreeSpeculation


class Settings(TreeSettings):
    """No policy chooses the size of a tree, and no draft ends at an end token."""

    nodes: int = Field(ge=1, description="the most tokens of a tree")
    top_k: int = Field(ge=1, description="children of a node, and nodes of a level that are read; 1: a chain")
    gamma: int = Field(ge=1, description="levels of the tree (γ)")


# How a tree grows: logits [V] after the context, and what reads its nodes -> the tree.
Grow = Callable[[Tensor, Read], Grown]


class Growing(TreeDrafter):
    """A draft model whose trees hold likely tokens, at any temperature; they are verified as point masses.

    At T > 0 the target draws one token after each node, and the child that equals it is accepted (`trees.tree_test`).
    """

    def __init__(self, session: Session, grow: Grow) -> None:
        super().__init__(session)
        self.grow = grow

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree that `grow` makes, on the device."""
        logits = self.session.catch_up(context).logits[-1]
        grown = self.grow(logits, LevelReader(self.session))
        return Draft(grown.tokens, None, later(grown.parents))


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    trees = partial(grow, top_k=settings.top_k, depth=settings.gamma - 1, most=settings.nodes)
    drafter = Growing(pair.session("draft", watch), trees)
    return TreeSpeculation(pair.session("target", watch), drafter, settings.gamma, settings.nodes, settings.accept())
