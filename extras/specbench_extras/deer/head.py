"""A drafter of blocks that reads the text itself, and no states of the target (as in DEER, arXiv 2512.15176).

The context goes through the head's own layers, each token reading the ones before it, so that its keys and values can
be cached. The tokens of a block, the last committed one and then masks, read the context and one another in both
directions, as those of `BlockHead`. Embedding and output layer are the target's.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from specbench.engine.models.block_head import BlockHead

KIND = "deer"


class TextBlockHead(BlockHead):
    """A block head whose features are the embeddings of the text's tokens, F = D; it reads no layer of the target."""

    def make_fusion(self) -> None:
        """There is nothing to fuse. Raises ValueError for a head that reads layers of the target."""
        if self.layers_read:
            raise ValueError(f"it reads layers {list(self.layers_read)} of the target, and may read none")

    def features(self, tokens: Tensor, states: Tensor | None) -> Tensor:
        embedded: Tensor = self.borrowed[0](tokens)
        return embedded.to(self.dtype)

    def fill(
        self,
        block: Tensor,
        features: Tensor,
        places: Tensor,
        cache: DynamicCache | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """As `BlockHead.fill`. The context goes through all layers but the last, of which it needs keys and values."""
        turn, count, context = self.rotary(features, places), features.shape[1], features
        of_text, of_block = (tuple(part[:, rows] for part in turn) for rows in (slice(count), slice(count, None)))
        layer: Any
        for index, layer in enumerate(self.layers):
            text, rows = layer.input_layernorm(context), layer.input_layernorm(block)
            keys, values = layer.self_attn.keys_values(text, rows, turn)
            if cache is not None:
                keys, values = cache.update(keys, values, index)
            if count and index + 1 < len(self.layers):
                known = keys.shape[2] - block.shape[1]
                before = torch.ones(count, known, dtype=torch.bool, device=keys.device).tril(known - count)
                read = layer.self_attn(text, of_text, keys[:, :, :known], values[:, :, :known], before)
                context = context + read
                context = context + layer.mlp(layer.post_attention_layernorm(context))
            if block.shape[1]:
                block = block + layer.self_attn(rows, of_block, keys, values, mask)
                block = block + layer.mlp(layer.post_attention_layernorm(block))
        states: Tensor = self.norm(block)
        return states
