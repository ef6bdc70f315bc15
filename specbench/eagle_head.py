"""The draft head of EAGLE-3 (arXiv 2503.01840): one decoder layer behind the target's own hidden states.

Names of weights and layout are those of the released checkpoints (SafeAILab/EAGLE).
"""

from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

# Of a head's configuration, what its file must tell: the rest follows from the shapes of its tensors.
TOLD = ("num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act", "rope_parameters")
WIDEST = 16  # times a model's width that its attention may be


def layers_read(target: PreTrainedModel) -> tuple[int, int, int]:
    """Which of the target's hidden states the head reads: what enters layers 2, L/2 and L - 3, counted from 0.

    Of targets with fewer layers than these need, the nearest that they have.
    """
    count = target.config.get_text_config().num_hidden_layers
    low, middle, high = (min(max(i, 0), count - 1) for i in (2, count // 2, count - 3))
    return low, middle, high


class EagleLayer(nn.Module):
    """A Llama layer whose attention reads a token's embedding and the feature before it, side by side."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = LlamaAttention(config, layer_idx=0)
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self.self_attn, name, nn.Linear(2 * width, getattr(self.self_attn, name).out_features, bias=False))
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(width, eps)
        self.hidden_norm = LlamaRMSNorm(width, eps)
        self.post_attention_layernorm = LlamaRMSNorm(width, eps)

    def read(self, embedded: Tensor, features: Tensor) -> Tensor:
        """What the attention reads [..., 2D], of embeddings and features [..., D]."""
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(features)], -1)

    def finish(self, features: Tensor, attended: Tensor) -> Tensor:
        """The state [..., D] behind the layer; its residual branch begins with the features."""
        state = features + attended
        return state + self.mlp(self.post_attention_layernorm(state))


class EagleHead(PreTrainedModel):
    """Reads tokens and, for each, the feature D of the one before it; predicts the next token of a reduced vocabulary.

    A feature is `fuse` of the target's hidden states where the target has read that token, and the head's own last
    state (before `norm`) where it has not. So the head's sequence is the target's without its first token. A `Session`
    drives it; `hidden_states` are the features and the states.

    `ids` [draft vocabulary] are the target's ids of its own. The embedding is the target's, which the head only
    borrows: it is none of its weights.
    """

    config_class = LlamaConfig
    _supports_sdpa = True

    def __init__(self, config: LlamaConfig, ids: Tensor, embedding: nn.Module) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.fc = nn.Linear(3 * width, width, bias=False)
        self.midlayer = EagleLayer(config)
        self.norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)
        self.register_buffer("ids", ids, persistent=False)
        self.ids: Tensor
        self.borrowed = (embedding,)  # in a tuple, so that it is no part of this module

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., D] of the target's tokens [...]."""
        embedded: Tensor = self.borrowed[0](tokens)
        return embedded.to(self.dtype)

    def fuse(self, states: Tensor) -> Tensor:
        """Features [..., D] of the target's hidden states [..., 3D]."""
        fused: Tensor = self.fc(states.to(self.dtype))
        return fused

    def forward(
        self,
        input_ids: Tensor,
        features: Tensor,
        past_key_values: DynamicCache,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Tokens [1, n] and features [1, n, D] behind what is cached, to which they are added in place."""
        count, known = input_ids.shape[1], past_key_values.get_seq_length()
        if position_ids is None:
            position_ids = torch.arange(known, known + count, device=self.device)[None]
        if attention_mask is None and count > 1:
            blocked = torch.full((count, known + count), -torch.inf, device=self.device, dtype=self.dtype)
            attention_mask = blocked.triu_(known + 1)[None, None]
        attended, _unused = self.midlayer.self_attn(
            self.midlayer.read(self.embed(input_ids), features),
            position_embeddings=self.rotary(features, position_ids),
            attention_mask=attention_mask,
            past_key_values=past_key_values,
        )
        states = self.midlayer.finish(features, attended)
        logits = self.lm_head(self.norm(states[:, -logits_to_keep:]))
        return CausalLMOutputWithPast(logits=logits, hidden_states=(features, states))


def config_of(width: int, inner: int, vocabulary: int, told: dict[str, Any]) -> LlamaConfig:
    """The configuration of a head: its width D, the MLP's inner width, draft vocabulary, and what TOLD names.

    Raises KeyError, TypeError or ValueError for what is missing or does not fit.
    """
    heads, groups, size = (told[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    if any(type(count) is not int or count < 1 for count in (heads, groups, size)):
        raise ValueError("its heads are no counts")
    if max(heads, groups) * size > WIDEST * width:  # before memory is taken for them
        raise ValueError(f"its attention is {heads} x {size} wide")
    sizes = {"hidden_size": width, "intermediate_size": inner, "vocab_size": vocabulary, "num_hidden_layers": 1}
    try:
        return LlamaConfig(**sizes, bos_token_id=None, eos_token_id=None, **{name: told[name] for name in TOLD})
    except StrictDataclassError as error:
        raise ValueError(str(error)) from None


def head_config(target: PreTrainedModel, vocabulary: int) -> LlamaConfig:
    """The configuration of a new head for a target, of its layers' sizes, with a draft vocabulary of so many tokens."""
    own = target.config.get_text_config()
    heads = own.num_attention_heads
    told = {
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(own, "num_key_value_heads", None) or heads,
        "head_dim": getattr(own, "head_dim", None) or own.hidden_size // heads,
        "rms_norm_eps": getattr(own, "rms_norm_eps", 1e-6),
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},  # the official code's, whatever the target
    }
    inner = getattr(own, "intermediate_size", None) or own.ffn_dim
    return config_of(own.hidden_size, inner, vocabulary, told)


def told_of(config: LlamaConfig) -> dict[str, Any]:
    """What TOLD names of a configuration, JSON-like."""
    return {name: getattr(config, name) for name in TOLD}
