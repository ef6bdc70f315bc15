"""OPT-Tree (Wang et al., arXiv 2406.17276): each round's tree grows while it promises enough. Lossless.

The expected number of accepted tokens of a tree is the sum over its nodes of the draft's probability of the path to
each. Level by level, a tree holds the nodes with the largest ones.
"""

from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from specbench.engine.models.pair import Pair
from specbench.engine.types import Method, Watch
from specbench.methods.heads.eagle3 import Grown, Read, best_children, ranked
from specbench.methods.rules import TreeSettings
from specbench.methods.trees.eagle2 import Growing
from specbench.methods.trees.rsd import TreeSpeculation


class Settings(TreeSettings):
    """No draft ends at an end token."""

    nodes: int = Field(ge=1, description="the most tokens of a tree, and of a level of it")
    threshold: float = Field(ge=0, description="a tree grows while a level adds more expected tokens than this (δ)")
    gamma: int = Field(ge=1, description="the most levels of a tree (γ)")


def grow(logits: Tensor, read: Read, nodes: int, threshold: float, levels: int) -> Grown:
    """The `nodes` likeliest nodes of a tree over the context, whose next token `logits` [V] predict.

    A level is read only if it added more than `threshold` expected tokens and `levels` is not reached yet; and of it
    only the nodes that are among the likeliest so far, since no child of another one can be (the official code reads
    all). Among equals the earlier node is likelier, so a chosen node's parent is chosen, too, and comes before it.
    """
    every = parents = torch.empty(0, dtype=torch.long, device=logits.device)  # of all nodes so far, level by level
    values = logits.new_empty(0)  # log-probabilities of the paths to them
    above = torch.full((1,), -1, device=logits.device)  # the nodes that were read last
    worth, rows, expected = logits.new_zeros(1), logits[None], 0.0
    for level in range(1, levels + 1):
        gains, children = best_children(rows, nodes)  # [n, k]
        paths, seen = (worth[:, None] + gains).flatten(), len(every)
        best = ranked(paths)[:nodes]
        followed = best // children.shape[1]
        every = torch.cat([every, children.flatten()[best]])
        parents = torch.cat([parents, above[followed]])
        values = torch.cat([values, paths[best]])
        chosen = ranked(values)[:nodes].sort().values
        before, expected = expected, float(values[chosen].exp().sum())
        above = chosen[chosen >= seen]
        if level == levels or expected - before <= threshold or not len(above):
            break
        worth = values[above]
        rows = read(every[above], followed[above - seen] if level > 1 else None)
    kept = parents[chosen]
    return Grown(every[chosen], torch.where(kept < 0, -1, torch.searchsorted(chosen, kept)), values[chosen])


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    trees = partial(grow, nodes=settings.nodes, threshold=settings.threshold, levels=settings.gamma)
    drafter = Growing(pair.session("draft", watch), trees)
    return TreeSpeculation(pair.session("target", watch), drafter, settings.gamma, settings.nodes, settings.accept())
