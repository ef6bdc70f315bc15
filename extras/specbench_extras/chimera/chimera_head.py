"""Chimera's draft head: three tokens are encoded and read the target's last states in a decoder layer (2402.15758).

The names of weights and their layout are those of the released checkpoints (kafkayu/Chimera): `trimlp` encodes,
`fast_layer1` is the layer, `chimera_head` the output layer.
"""

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRMSNorm

from specbench.engine.models.draft_heads import ResidualBlock
from specbench.engine.models.eagle_head import LayerHead
from specbench.engine.models.feature_head import FeatureLayer

READ = 3  # tokens that are encoded together


class ContextLayer(FeatureLayer):
    """A Llama layer."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)


class ChimeraHead(LayerHead):
    """A head whose sequence is the target's: of each token the target's last state, or an encoding.

    A token that the target has read stands there as the target's state after it; another one as the encoding of it and
    of the two tokens before it. So only what the target has not read yet is computed by the head, and drafted tokens do
    not go on with the head's own states.

    The features [1 + 3 D] of a token are: 1 if the target has read it, else 0; the embeddings of the two tokens before
    it, which matter if it has not; the target's state after the last token up to it that the target has read. The
    states [2 D] are that one and what the layer makes of the token. The vocabulary is the target's.
    """

    def __init__(self, config: LlamaConfig, embedding: nn.Module) -> None:
        super().__init__(config, torch.arange(config.vocab_size), embedding)
        width = config.hidden_size
        self.trimlp = nn.Sequential(ResidualBlock(READ * width), nn.Linear(READ * width, width, bias=False))
        self.fast_layer1 = nn.ModuleList([ContextLayer(config)])
        self.chimera_head = nn.ModuleList([nn.ModuleList([nn.Linear(2 * width, config.vocab_size, bias=False)])])

    @property
    def layer(self) -> ContextLayer:
        layer = self.fast_layer1[0]
        assert isinstance(layer, ContextLayer)
        return layer

    @property
    def output(self) -> nn.Linear:
        """The output layer; its first D columns read the target's state."""
        return self.chimera_head[0][0]  # type: ignore[index,return-value]

    @property
    def attention(self) -> LlamaAttention:
        return self.layer.self_attn

    def fuse(self, states: Tensor) -> Tensor:
        return states.to(self.dtype)

    def standing(self, states: Tensor) -> Tensor:
        """Features of tokens that the target has read, from its states [..., D] after them."""
        embeddings = states.new_zeros(1).expand(*states.shape[:-1], (READ - 1) * states.shape[-1])
        return torch.cat([torch.ones_like(states[..., :1]), embeddings, states], -1)

    def begin(self, before: Tensor, state: Tensor) -> Tensor:
        """The feature [1, 1 + 3 D] of the first token that the target has not read, after two tokens and a state."""
        return torch.cat([state.new_zeros(1, 1), self.embed(before).flatten()[None].to(state.device), state], -1)

    def encode(self, tokens: Tensor) -> Tensor:
        """Encodings [..., D] of the embeddings [..., 3 D] of three tokens that follow one another."""
        encoded: Tensor = self.trimlp(tokens)
        return encoded

    def read(self, embedded: Tensor, features: Tensor) -> Tensor:
        known, before, state = self.parts(features)
        return torch.where(known > 0, state, self.encode(torch.cat([before, embedded], -1)))

    def parts(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three parts of features."""
        width = self.config.hidden_size
        known, before, state = features.split([1, (READ - 1) * width, width], -1)
        return known, before, state

    def attend(self, read: Tensor, **where: object) -> Tensor:
        return super().attend(self.layer.input_layernorm(read), **where)

    def finish(self, read: Tensor, features: Tensor, attended: Tensor) -> Tensor:
        state = read + attended
        state = state + self.layer.mlp(self.layer.post_attention_layernorm(state))
        return torch.cat([self.parts(features)[2], state], -1)

    def carry(self, states: Tensor, embedded: Tensor, features: Tensor) -> Tensor:
        """The features of the tokens after tokens that the target has not read."""
        _, before, state = self.parts(features)
        return torch.cat([torch.zeros_like(state[..., :1]), before[..., embedded.shape[-1] :], embedded, state], -1)

    def predict(self, states: Tensor) -> Tensor:
        logits: Tensor = self.output(states)
        return logits
