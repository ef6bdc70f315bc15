"""The drafter of SpecBlock: a few layers over K slots a token, whose slots depend on one another (arXiv 2605.07243).

Each token of the text has K slots, and slot k, counted from 0, predicts the token k + 1 places after it. A slot reads
the slots of all tokens before its own, and its own token's up to itself. Before each layer but the first, a slot's
state is joined with that of the slot before it. From a slot's state and logits a rank head guesses the right token's
rank.

The names of weights and their layout are those of the official code (shiweijiezero/SpecBlock).
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, LlamaConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from specbench.engine.models.eagle_head import chain_after, config_of
from specbench.engine.sampling import wide

BOUNDS = (1, 4, 10)  # the last ranks of all classes but the last one: rank 1, 2 to 4, 5 to 10, and beyond
CLASSES = len(BOUNDS) + 1
LIKELIEST, LISTED, GAPS = 20, 10, (1, 2, 4)  # the tokens that the rank head looks at; see `evidence`
EVIDENCE = LISTED + len(GAPS) + 2
IMPOSSIBLE = -50.0  # the log-probability of tokens that a small vocabulary lacks


class Inputs(nn.Module):
    """What enters the first layer: a linear layer over a condition, a token and a slot, each with a norm."""

    def __init__(self, config: LlamaConfig, slots: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.condition_proj = nn.Linear(3 * width, width, bias=False)
        self.condition_norm = LlamaRMSNorm(width, eps)
        self.token_norm = LlamaRMSNorm(width, eps)
        self.position_queries = nn.Embedding(slots, width)
        self.query_norm = LlamaRMSNorm(width, eps)
        self.fuse = nn.Linear(3 * width, width, bias=False)

    def forward(self, conditions: Tensor, embedded: Tensor) -> Tensor:
        """[..., n, K, D] from conditions and embeddings [..., n, D] of n tokens."""
        queries = self.query_norm(self.position_queries.weight)
        both = torch.cat([self.condition_norm(conditions), self.token_norm(embedded)], -1)
        of_token, of_slot = self.fuse.weight.split([both.shape[-1], queries.shape[-1]], 1)
        return F.linear(both, of_token)[..., None, :] + F.linear(queries, of_slot)


class RankBlockHead(PreTrainedModel):
    """Reads tokens, each with a condition, in K rows each; row k of a token is its slot k.

    The condition of a token that the target has read is `fuse` of the target's states after the token before it. A
    block that begins at a drafted token has the state of the slot that drafted it as its condition. A `Session` drives
    the head: its sequence is the text without its first token, K rows for each. `hidden_states` are the states that the
    last layer leaves, before `norm`.

    `ids` [draft vocabulary] maps its tokens to the target's. The embedding is the target's and not one of its weights.
    """

    config_class = LlamaConfig
    _supports_sdpa = True

    def __init__(
        self,
        config: LlamaConfig,
        hidden: Sequence[int],
        slots: int,
        ranking: int,
        ids: Tensor,
        embedding: nn.Module,
    ) -> None:
        """`hidden` are the target's hidden states that it reads, `ranking` is the inner width of the rank head."""
        super().__init__(config)
        width = config.hidden_size
        self.hidden, self.slots = tuple(hidden), slots
        self.input_layer = Inputs(config, slots)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.shift_proj = nn.ModuleList(
            nn.Linear(2 * width, width, bias=False) for _ in range(config.num_hidden_layers - 1)
        )
        self.norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.rank_head = nn.Sequential(
            nn.Linear(width + EVIDENCE, ranking, bias=False), nn.SiLU(), nn.Linear(ranking, CLASSES, bias=False)
        )
        self.rotary = LlamaRotaryEmbedding(config)
        self.register_buffer("ids", ids, persistent=False)
        self.ids: Tensor
        self.borrowed = (embedding,)  # in a tuple, so that it is no submodule

    def fuse(self, states: Tensor) -> Tensor:
        """Conditions [..., D] from three of the target's hidden states [..., 3 D]."""
        fused: Tensor = self.input_layer.condition_proj(states.to(self.dtype))
        return fused

    def read(self, tokens: Tensor, conditions: Tensor) -> Tensor:
        """The first layer's input [b, n K, D] for target tokens [b, n] and their conditions [b, n, D]."""
        embedded = self.borrowed[0](tokens).to(self.dtype)
        rows: Tensor = self.input_layer(conditions, embedded)
        return rows.flatten(1, 2)

    def fill(
        self, rows: Tensor, places: Tensor, cache: DynamicCache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """States [b, n K, D] before the last norm, of rows [b, n K, D] after the cached ones.

        The rows join the cache, in place. `places` [b, n K] are their positions. Without a mask the cache must be
        empty, and each row reads the ones before it.
        """
        turn = self.rotary(rows, places)
        for index, layer in enumerate(self.layers):
            if index:
                rows = self.shift_proj[index - 1](torch.cat([rows, self.shifted(rows)], -1))
            rows = layer(rows, attention_mask=mask, past_key_values=cache, position_embeddings=turn)
        return rows

    def shifted(self, rows: Tensor) -> Tensor:
        """For each row [b, n K, D] the one of the slot before it; a token's first slot has its own."""
        slots = rows.unflatten(1, (-1, self.slots))
        return torch.cat([slots[:, :, :1], slots[:, :, :-1]], 2).flatten(1, 2)

    def predict(self, states: Tensor) -> Tensor:
        """Logits [..., draft vocabulary] of states [..., D]."""
        return cast(Tensor, self.lm_head(self.norm(states)))

    def rank(self, states: Tensor, logits: Tensor) -> Tensor:
        """Scores [..., CLASSES] of the class of the right token's rank, by states [..., D] and their logits.

        Nothing flows back into states and logits.
        """
        normed = self.norm(states).detach()
        return cast(Tensor, self.rank_head(torch.cat([normed, evidence(logits.detach()).to(normed.dtype)], -1)))

    def forward(
        self,
        input_ids: Tensor,
        features: Tensor,
        past_key_values: DynamicCache,
        attention_mask: Tensor | None = None,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Read n tokens, K rows each: ids [1, n K] and features [1, n K, D + 1], both the same in all rows of a token.

        A feature is a token's condition and, last, the position of its first slot.
        """
        first = slice(None, None, self.slots)
        attention_mask, _unused = chain_after(
            past_key_values.get_seq_length(), features[..., :-1].to(self.dtype), attention_mask, None
        )
        places = features[..., -1].long() + torch.arange(features.shape[1], device=features.device) % self.slots
        rows = self.read(input_ids[:, first], features[:, first, :-1].to(self.dtype))
        states = self.fill(rows, places, past_key_values, attention_mask)
        logits = self.predict(states[:, -logits_to_keep:])
        return CausalLMOutputWithPast(logits=logits, hidden_states=(states,))


def evidence(logits: Tensor) -> Tensor:
    """What the rank head knows of logits [..., V]: [..., EVIDENCE], of the 20 likeliest tokens.

    The log-probabilities of the first ten among them, how far the first is above the second, third and fifth, the
    probability of the first, and the entropy (official code).
    """
    logs = wide(logits).topk(min(LIKELIEST, logits.shape[-1])).values.log_softmax(-1)
    logs = F.pad(logs, (0, LIKELIEST - logs.shape[-1]), value=IMPOSSIBLE)
    chances = logs.exp()
    gaps = logs[..., :1] - logs[..., list(GAPS)]
    return torch.cat(
        [logs[..., :LISTED], gaps, chances[..., :1], -(chances * logs).sum(-1, keepdim=True)],
        -1,
    )


def rank_config(width: int, inner: int, vocabulary: int, layers: int, stored: dict[str, Any]) -> LlamaConfig:
    """The configuration of a head, as `config_of` makes it, with this number of layers."""
    config = config_of(width, inner, vocabulary, stored)
    config.num_hidden_layers = layers
    return config
