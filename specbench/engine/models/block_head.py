"""A drafter of blocks: layers that read the target's hidden states and fill a block of slots at once.

The form of DFlash (arXiv 2602.06036, section 3): the context is read as keys and values only, made of the target's
states after each token. The tokens of a block, the last committed one and then masks, read the context and one another
in both directions. Embedding and output layer are the target's. DFlare (arXiv 2606.02091) mixes the target's layers
again for each layer of the head, and has projections of its own for the context.

The names of weights and their layout are those of the released checkpoints (z-lab/dflash, Tencent/AngelSlim); `mask` is
added, the embedding of a mask.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel, Qwen3Config
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from specbench.engine.models.eagle_head import STORED, check_attention


def spread(layers: int, count: int) -> list[int]:
    """`count` of a target's `layers`, counted from 0, whose outputs a head reads: evenly from 1 to L - 3; one: L / 2.

    A target with too few layers gives the nearest ones that it has (official code: `build_target_layer_ids`).
    """
    if count == 1:
        return [layers // 2]
    first = min(1, layers - 1)
    last = max(first, layers - 3)
    return [round(first + i * (last - first) / (count - 1)) for i in range(count)]


def first_mix(layers: int, read: int) -> Tensor:
    """The weights [layers, read], before the softmax, that new mixed heads begin with (DFlare's official code).

    Layer d begins with most of the ⌊d / layers · read⌋th layer that is read.
    """
    weights = torch.zeros(layers, read)
    weights[torch.arange(layers), torch.arange(layers) * read // layers] = 2.0
    return weights


class BlockAttention(nn.Module):
    """Attention of a block's tokens to the context and to one another.

    Keys and values of both share projections, unless it is `mixed` (DFlare): then the context's have their own.
    """

    def __init__(self, config: Qwen3Config, mixed: bool = False) -> None:
        super().__init__()
        width, self.size = config.hidden_size, config.head_dim
        heads, groups = config.num_attention_heads * self.size, config.num_key_value_heads * self.size
        self.q_proj = nn.Linear(width, heads, bias=False)
        self.k_proj = nn.Linear(width, groups, bias=False)
        self.v_proj = nn.Linear(width, groups, bias=False)
        self.o_proj = nn.Linear(heads, width, bias=False)
        self.mixed = mixed
        if mixed:
            self.k_proj_target = nn.Linear(width, groups, bias=False)
            self.v_proj_target = nn.Linear(width, groups, bias=False)
        self.q_norm = Qwen3RMSNorm(self.size, config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.size, config.rms_norm_eps)

    def by_head(self, projected: Tensor) -> Tensor:
        """[b, n, heads, d] of [b, n, heads d]."""
        return projected.unflatten(-1, (-1, self.size))

    def keys_values(self, context: Tensor, block: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values [b, K, n + m, d] of a context [b, n, D] and a block [b, m, D] at the places of `turn`."""
        if self.mixed:
            keys = torch.cat([self.k_proj_target(context), self.k_proj(block)], 1)
            values = torch.cat([self.v_proj_target(context), self.v_proj(block)], 1)
        else:
            rows = torch.cat([context, block], 1)
            keys, values = self.k_proj(rows), self.v_proj(rows)
        keys = self.k_norm(self.by_head(keys)).transpose(1, 2)
        keys, _same = apply_rotary_pos_emb(keys, keys[:, :0], *turn)
        return keys, self.by_head(values).transpose(1, 2)

    def forward(
        self, block: Tensor, turn: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """What a block [b, m, D] reads of keys and values [b, K, S, d]: [b, m, D]. Without a mask, everything."""
        queries = self.q_norm(self.by_head(self.q_proj(block))).transpose(1, 2)
        queries, _same = apply_rotary_pos_emb(queries, queries[:, :0], *turn)
        if mask is not None and mask.is_cuda:  # where no fast kernel with a mask has heads that share keys
            groups = queries.shape[1] // keys.shape[1]
            keys, values = (rows.repeat_interleave(groups, 1) for rows in (keys, values))
        read = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        mixed: Tensor = self.o_proj(read.transpose(1, 2).flatten(2))
        return mixed


class BlockLayer(nn.Module):
    """A Qwen 3 layer for the block; of the context it makes keys and values only."""

    def __init__(self, config: Qwen3Config, mixed: bool) -> None:
        super().__init__()
        self.self_attn = BlockAttention(config, mixed)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)


class BlockHead(PreTrainedModel):
    """Reads context features and a block of tokens; slot k of the block predicts the token at its own place.

    The feature of a token is `fuse` of the target's states after it. A `Session` drives the head, whose sequence is
    the target's: its cache holds the context's keys and values, and while a block is drafted also the block's.

    `layers_read` are the T layers of the target whose outputs are read, `block` is the size of a block in training. A
    `mixed` head (DFlare) makes a feature for each of its own layers, F = L D numbers; another (DFlash) one for all,
    F = D. Embedding and output layer are the target's and not among the head's weights.
    """

    config_class = Qwen3Config
    _supports_sdpa = True

    def __init__(
        self,
        config: Qwen3Config,
        layers_read: Sequence[int],
        block: int,
        embedding: nn.Module,
        output: nn.Module,
        mixed: bool = False,
    ) -> None:
        super().__init__(config)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.layers_read, self.block, self.mixed = tuple(layers_read), block, mixed
        self.make_fusion()
        self.layers = nn.ModuleList(BlockLayer(config, mixed) for _ in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(width, eps)
        self.mask = nn.Parameter(torch.zeros(width))
        self.rotary = Qwen3RotaryEmbedding(config)
        self.borrowed = (embedding, output)  # in a tuple, so that they are not submodules

    def make_fusion(self) -> None:
        """Add the weights that make features of the target's states. Raises ValueError for a head that reads none."""
        width, read = self.config.hidden_size, len(self.layers_read)
        if not read:
            raise ValueError("it reads layers [] of the target")
        if self.mixed:
            self.layer_fusion_weights = nn.Parameter(first_mix(self.config.num_hidden_layers, read))
        else:
            self.fc = nn.Linear(read * width, width, bias=False)
        self.hidden_norm = Qwen3RMSNorm(width, self.config.rms_norm_eps)

    @property
    def hidden(self) -> tuple[int, ...]:
        """The target's hidden states that the head reads, as `Session.forward` counts them."""
        return tuple(layer + 1 for layer in self.layers_read)

    def fuse(self, states: Tensor) -> Tensor:
        """Features [..., F] from the target's hidden states [..., T D], T of them for each token."""
        states = states.to(self.dtype)
        if self.mixed:
            shares = self.layer_fusion_weights.softmax(-1)  # [L, T]
            mixed = shares @ states.unflatten(-1, (len(self.layers_read), -1))  # [..., L, D]
            return cast(Tensor, self.hidden_norm(mixed)).flatten(-2)
        fused: Tensor = self.hidden_norm(self.fc(states))
        return fused

    def features(self, tokens: Tensor, states: Tensor | None) -> Tensor:
        """Features [..., F] of a text's tokens [...], after which the target has the states [..., T D]."""
        assert states is not None
        return self.fuse(states)

    def embed(self, first: Tensor, size: int) -> Tensor:
        """The input [..., size, D] of blocks of `size` slots that begin with the tokens `first` [...]."""
        embedded = self.borrowed[0](first).to(self.dtype)[..., None, :]
        return torch.cat([embedded, self.mask.expand(*first.shape, size - 1, -1)], -2)

    def fill(
        self,
        block: Tensor,
        features: Tensor,
        places: Tensor,
        cache: DynamicCache | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """States [b, m, D], for the output layer, of blocks [b, m, D] after the cached context and features [b, n, F].

        `places` [b, n + m] are their positions. Keys and values of both join the cache, in place. `mask` [b, 1, m, S],
        True where a row is read, is for several blocks side by side; else every slot reads all S rows.
        """
        turn = self.rotary(features, places)
        own = tuple(part[:, features.shape[1] :] for part in turn)
        contexts = features.chunk(len(self.layers), -1) if self.mixed else [features] * len(self.layers)
        layer: Any
        for index, (layer, context) in enumerate(zip(self.layers, contexts, strict=True)):
            rows = layer.input_layernorm(block)
            keys, values = layer.self_attn.keys_values(context, rows, turn)
            if cache is not None:
                keys, values = cache.update(keys, values, index)
            if block.shape[1]:
                block = block + layer.self_attn(rows, own, keys, values, mask)
                block = block + layer.mlp(layer.post_attention_layernorm(block))
        states: Tensor = self.norm(block)
        return states

    def predict(self, states: Tensor) -> Tensor:
        """Logits [..., V] of states [..., D], by the target's output layer."""
        output: Any = self.borrowed[1]
        logits: Tensor = output(states.to(output.weight.dtype))
        return logits

    def forward(
        self, input_ids: Tensor, features: Tensor, past_key_values: DynamicCache, logits_to_keep: int = 0, **_: Any
    ) -> CausalLMOutputWithPast:
        """Read tokens [1, n + m] after the cached ones: n of the context by features [1, n, F], then a block of m.

        Only the block's first token is looked at; the others are masks. Logits [1, m, V], or those of the last
        `logits_to_keep` slots, are of the block alone; without a block (m = 0) there are none.
        """
        read, cached = features.shape[1], past_key_values.get_seq_length()
        places = torch.arange(cached, cached + input_ids.shape[1], device=self.device)[None]
        count = input_ids.shape[1] - read
        block = self.embed(input_ids[:, read], count) if count else features[:, :0, : self.config.hidden_size]
        states = self.fill(block, features, places, past_key_values)
        return CausalLMOutputWithPast(logits=self.predict(states[:, -logits_to_keep:]))


def block_config(width: int, inner: int, layers: int, vocabulary: int, stored: dict[str, Any]) -> Qwen3Config:
    """The configuration of a head: its width D, the MLP's inner width, its number of layers, and the STORED settings.

    Raises KeyError, TypeError or ValueError for settings that are missing or do not fit.
    """
    check_attention(width, stored)
    sizes = {"hidden_size": width, "intermediate_size": inner, "vocab_size": vocabulary, "num_hidden_layers": layers}
    try:
        return Qwen3Config(**sizes, bos_token_id=None, eos_token_id=None, **{name: stored[name] for name in STORED})
    except StrictDataclassError as error:
        raise ValueError(str(error)) from None
