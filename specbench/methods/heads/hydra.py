"""Hydra: heads like Medusa's that also read what is drafted before them (arXiv 2402.05109).

A level of the tree is drafted by one call of a head, a row for each node that has children. Lossless by the exact rule
of trees; with `rule=typical` lossy at T > 0.
"""

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.ids import to_device
from specbench.engine.models.draft_heads import HydraHeads, counted
from specbench.engine.models.heads import hidden_size
from specbench.engine.models.pair import Pair
from specbench.engine.types import Method, Watch
from specbench.methods.heads.eagle3 import check_target
from specbench.methods.heads.medusa import Medusa, RankedDrafter, loaded
from specbench.methods.heads.medusa import Settings as Base

KIND = "hydra"


class Settings(Base):
    """Those of medusa."""


class HydraDrafter(RankedDrafter):
    """Level by level: each head reads the state, the last committed token and the tokens on the path of each node."""

    heads: HydraHeads

    @cached_property
    def rows(self) -> int:
        """The positions that the heads read in a round."""
        return 1 + sum(len(level.expanded) for level in self.tree.levels[:-1])

    @torch.inference_mode()
    def fill(self, context: list[int]) -> Tensor:
        with self.watch.forward("draft", self.rows, len(context) - 1, len(self.tree.levels)):
            return self.chosen(self.state, to_device(context[-1:], self.state.device))

    def choose(self, state: Tensor, last: Tensor) -> Tensor:
        """The tokens [K] of the tree after a state [1, D] and the last committed token [1]."""
        path = last[None]  # [1, 1]
        levels = []
        for head, level in enumerate(self.tree.levels):
            logits = self.heads.predict(head, state.expand(len(path), -1), path)
            ranked = logits[:, : self.vocabulary].topk(level.width).indices  # [nodes with children, ranks]
            tokens = ranked[level.rows, level.ranks]
            levels.append(tokens)
            path = torch.cat([path[level.rows], tokens[:, None]], -1)[level.expanded]
        return torch.cat(levels)


def hydra_heads(tensors: Mapping[str, Tensor], target: PreTrainedModel) -> HydraHeads:
    """New heads of the numbers of tensors, in torch's first weights. Raises ValueError or KeyError."""
    heads, layers = counted(tensors, "hydra_mlp."), counted(tensors, "hydra_mlp.0.")
    own = "hydra_lm_head.0.weight" in tensors
    output, embedding = target.get_output_embeddings(), target.get_input_embeddings()
    return HydraHeads(heads, layers, hidden_size(target), own, output, embedding)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for heads that do not fit it.

    The heads run eagerly; on `graph` they are captured.
    """
    check_target(pair, KIND)
    heads, tree, hashes = loaded(settings, pair, KIND, hydra_heads)
    assert isinstance(heads, HydraHeads)
    drafter = HydraDrafter(heads, tree, pair.vocabulary, watch, pair.runtime)
    return Medusa(pair.session("target", watch), drafter, hashes, settings.accept())
