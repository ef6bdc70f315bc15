"""A multi-token-prediction module as a head of one decoder layer, where its layer has the form that heads have.

It then drafts as EAGLE's heads do: on a runtime that knows them, and captured where they are.
"""

from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaAttention

from specbench.engine.models.eagle_head import LayerHead

LAYERS = ("Llama", "Mistral", "Qwen2", "Qwen3")  # + "DecoderLayer": plain attention, and an MLP without experts


def as_head(model: Any, vocabulary: int) -> "MtpHead | None":
    """A transformers MtpModel of one module as a head that shares its weights; None if its layer has another form."""
    layers, config = list(model.layers), model.config
    if len(layers) != 1 or type(layers[0].mtp_block).__name__.removesuffix("DecoderLayer") not in LAYERS:
        return None
    block = layers[0].mtp_block
    windowed = getattr(block.self_attn, "sliding_window", None) or getattr(config, "sliding_window", None)
    plain = not hasattr(block.mlp, "experts") and layers[0].use_post_norm and not model.use_shared_post_norm
    scaled = getattr(config, "logits_mup_width_multiplier", None) or getattr(config, "mtp_hidden_states_first", False)
    return MtpHead(model, vocabulary) if plain and not windowed and not scaled else None


class MtpHead(LayerHead):
    """A module that reads the target's last state, and whose states, after its norm, stand for it on drafted tokens.

    Its vocabulary is the target's, and so is its output layer.
    """

    def __init__(self, model: Any, vocabulary: int) -> None:
        """`model` is a transformers MtpModel of one module."""
        config = copy(model.config)
        config.vocab_size = vocabulary
        super().__init__(config, torch.arange(vocabulary), model.embed_tokens, model.shared_head)
        self.layers = model.layers
        self.to(model.shared_head.weight.device)

    @property
    def module(self) -> Any:
        """Norms of the embedding and of the state, what joins them, a decoder layer, and the norm after it."""
        return self.layers[0]

    @property
    def attention(self) -> LlamaAttention:
        attention: LlamaAttention = self.module.mtp_block.self_attn
        return attention

    def fuse(self, states: Tensor) -> Tensor:
        return states.to(self.dtype)

    def read(self, embedded: Tensor, features: Tensor) -> Tensor:
        module = self.module
        read: Tensor = module.eh_proj(torch.cat([module.enorm(embedded), module.hnorm(features)], -1))
        return read

    def attend(self, read: Tensor, **where: Any) -> Tensor:
        return super().attend(self.module.mtp_block.input_layernorm(read), **where)

    def finish(self, read: Tensor, features: Tensor, attended: Tensor) -> Tensor:
        block, state = self.module.mtp_block, read + attended
        finished: Tensor = self.module.post_norm(state + block.mlp(block.post_attention_layernorm(state)))
        return finished

    def predict(self, states: Tensor) -> Tensor:
        output = self.borrowed[1]
        logits: Tensor = output(states.to(next(output.parameters()).dtype))
        return logits[..., : len(self.ids)]
