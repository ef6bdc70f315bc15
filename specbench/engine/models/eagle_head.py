"""Draft heads of EAGLE's family, one decoder layer on the target's hidden states; that of EAGLE-3 (arXiv 2503.01840).

The names of weights and their layout are those of the released checkpoints (SafeAILab/EAGLE).
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from specbench.engine.models.cost import VARIES, of_all_layers

# The part of a head's configuration that its file must hold; the shapes of its tensors determine the rest.
STORED = ("num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act", "rope_parameters")
WIDEST = 16  # how many times a model's width its attention may be wide


def layers_read(target: PreTrainedModel) -> tuple[int, int, int]:
    """The target's hidden states that the head reads: those that enter layers 2, L/2 and L - 3, counted from 0.

    A target with too few layers gives the nearest ones that it has.
    """
    count = target.config.get_text_config().num_hidden_layers
    low, middle, high = (min(max(i, 0), count - 1) for i in (2, count // 2, count - 3))
    return low, middle, high


class LayerHead(PreTrainedModel):
    """A head of one decoder layer, which reads tokens, each with the feature [D] of the token before it.

    The feature of a token that the target has read is `fuse` of the target's hidden states; else it is what the head
    made of its own state, `carry`. So the head's sequence is the target's without its first token. A `Session` drives
    it; `hidden_states` are the features, and those that its states make.

    `ids` [draft vocabulary] maps its tokens to the target's. The embedding is the target's and not one of the head's
    weights.
    """

    config_class = LlamaConfig
    _supports_sdpa = True

    def __init__(self, config: LlamaConfig, ids: Tensor, *borrowed: nn.Module) -> None:
        super().__init__(config)
        self.rotary = LlamaRotaryEmbedding(config)
        self.register_buffer("ids", ids, persistent=False)
        self.ids: Tensor
        self.borrowed = borrowed  # the embedding first; in a tuple, so that they are not submodules

    @property
    @abstractmethod
    def attention(self) -> LlamaAttention:
        """Of the layer."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., D] of target tokens [...]."""
        embedded: Tensor = self.borrowed[0](tokens)
        return embedded.to(self.dtype)

    @abstractmethod
    def fuse(self, states: Tensor) -> Tensor:
        """Features [..., D] from the target's hidden states [..., n D]."""

    @abstractmethod
    def read(self, embedded: Tensor, features: Tensor) -> Tensor:
        """The input of the attention, from embeddings and features [..., D]."""

    @abstractmethod
    def finish(self, read: Tensor, features: Tensor, attended: Tensor) -> Tensor:
        """The state [..., D] after the layer, whose attention has read `read`."""

    def attend(self, read: Tensor, **where: Any) -> Tensor:
        """What the attention makes of `read`; `where` are the other arguments of its forward."""
        attended: Tensor = self.attention(read, **where)[0]
        return attended

    def carry(self, states: Tensor, embedded: Tensor, features: Tensor) -> Tensor:
        """The features of the tokens after those that were read, from the states after these and from what was read."""
        return states

    @abstractmethod
    def predict(self, states: Tensor) -> Tensor:
        """Logits [..., draft vocabulary] of the next token, from states [..., D]."""

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
        """Read tokens [1, n] and features [1, n, D] after the cached ones; they are added to the cache, in place."""
        attention_mask, position_ids = chain_after(
            past_key_values.get_seq_length(), features, attention_mask, position_ids
        )
        embedded = self.embed(input_ids)
        read = self.read(embedded, features)
        attended = self.attend(
            read,
            position_embeddings=self.rotary(features, position_ids),
            attention_mask=attention_mask,
            past_key_values=past_key_values,
        )
        states = self.finish(read, features, attended)
        logits = self.predict(states[:, -logits_to_keep:])
        return CausalLMOutputWithPast(logits=logits, hidden_states=(features, self.carry(states, embedded, features)))


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
        """The input of the attention [..., 2D], from embeddings and features [..., D]."""
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(features)], -1)

    def finish(self, features: Tensor, attended: Tensor) -> Tensor:
        """The state [..., D] after the layer; its residual branch begins with the features."""
        state = features + attended
        return state + self.mlp(self.post_attention_layernorm(state))


class EagleHead(LayerHead):
    """The head of EAGLE-3: it reads three of the target's hidden states, and carries its last state (before `norm`).

    `reads` is the width of the three together, if they are not as wide as the head.
    """

    def __init__(self, config: LlamaConfig, ids: Tensor, embedding: nn.Module, reads: int | None = None) -> None:
        super().__init__(config, ids, embedding)
        width = config.hidden_size
        self.fc = nn.Linear(reads or 3 * width, width, bias=False)
        self.midlayer = EagleLayer(config)
        self.norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)

    @property
    def attention(self) -> LlamaAttention:
        return self.midlayer.self_attn

    def fuse(self, states: Tensor) -> Tensor:
        fused: Tensor = self.fc(states.to(self.fc.weight))
        return fused

    def read(self, embedded: Tensor, features: Tensor) -> Tensor:
        return self.midlayer.read(embedded, features)

    def finish(self, read: Tensor, features: Tensor, attended: Tensor) -> Tensor:
        return self.midlayer.finish(features, attended)

    def predict(self, states: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.norm(states))
        return logits


def copied(modules: Iterable[nn.Module], where: torch.device | None) -> Iterator[nn.Module]:
    """Modules of the target for a head: as they are, or copies on the device `where`."""
    for module in modules:
        yield module if where is None else deepcopy(module).to(where)


def chain_after(
    cached: int, features: Tensor, mask: Tensor | None, places: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """Mask and positions of features [B, n, D] after `cached` tokens; where none are given, those of a causal chain."""
    count = features.shape[1]
    if places is None:
        places = torch.arange(cached, cached + count, device=features.device)[None]
    if mask is None and count > 1:
        blocked = torch.full((count, cached + count), -torch.inf, device=features.device, dtype=features.dtype)
        mask = blocked.triu_(cached + 1)[None, None]
    return mask, places


def config_of(width: int, inner: int, vocabulary: int, stored: dict[str, Any]) -> LlamaConfig:
    """The configuration of a head: its width D, the MLP's inner width, the draft vocabulary, and the STORED settings.

    Raises KeyError, TypeError or ValueError for settings that are missing or do not fit.
    """
    check_attention(width, stored)
    sizes = {"hidden_size": width, "intermediate_size": inner, "vocab_size": vocabulary, "num_hidden_layers": 1}
    try:
        return LlamaConfig(**sizes, bos_token_id=None, eos_token_id=None, **{name: stored[name] for name in STORED})
    except StrictDataclassError as error:
        raise ValueError(str(error)) from None


def check_attention(width: int, stored: dict[str, Any]) -> None:
    """Raise KeyError or ValueError if the STORED settings of a head of this width D are no sizes of an attention."""
    heads, groups, size = (stored[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    if any(type(count) is not int or count < 1 for count in (heads, groups, size)):
        raise ValueError("its numbers of heads are no counts")
    if max(heads, groups) * size > WIDEST * width:  # before memory is allocated for them
        raise ValueError(f"its attention is {heads} x {size} wide")


def head_config(target: PreTrainedModel, vocabulary: int) -> LlamaConfig:
    """The configuration of a new head, with the layer sizes of the target and a draft vocabulary of this size."""
    inner, stored = layer_sizes(target)
    return config_of(target.config.get_text_config().hidden_size, inner, vocabulary, stored)


def layer_sizes(target: PreTrainedModel) -> tuple[int, dict[str, Any]]:
    """The inner width of the target's MLPs, and the STORED settings of a new head with layers of the target's sizes.

    Where the target's layers have sizes of their own, the head's are the usual ones: hidden size / heads, and 4 times
    the hidden size.
    """
    config = target.config.get_text_config()

    def size(name: str) -> int | None:
        value = of_all_layers(config, name)
        return None if value == VARIES else value

    heads = config.num_attention_heads
    stored = {
        "num_attention_heads": heads,
        "num_key_value_heads": size("num_key_value_heads") or heads,
        "head_dim": size("head_dim") or config.hidden_size // heads,
        "rms_norm_eps": getattr(config, "rms_norm_eps", 1e-6),
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},  # as in the official code, for any target
    }
    inner = next(filter(None, map(size, ("intermediate_size", "ffn_dim", "n_inner"))), 4 * config.hidden_size)
    return inner, stored


def stored_settings(config: PreTrainedConfig) -> dict[str, Any]:
    """The STORED settings of a configuration, JSON-like."""
    return {name: getattr(config, name) for name in STORED}
