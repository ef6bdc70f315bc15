"""The adapter of Kangaroo (arXiv 2404.18911): an attention sublayer that reads the states after the first layers."""

from typing import Any

from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRMSNorm, LlamaRotaryEmbedding

from specbench.engine.models.eagle_head import chain_after


class ExitAdapter(PreTrainedModel):
    """Reads the state [D] that leaves the target's exit layer at each token; predicts the next token.

    An attention sublayer with a norm and a residual branch, then a norm and the target's output layer. It has no MLP.
    A `Session` drives it: the states are its `features`, and its tokens count positions only. The output layer is the
    target's and not one of the adapter's weights.
    """

    config_class = LlamaConfig
    _supports_sdpa = True

    def __init__(self, config: LlamaConfig, output: nn.Module) -> None:
        super().__init__(config)
        self.self_attn = LlamaAttention(config, layer_idx=0)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = LlamaRotaryEmbedding(config)
        self.borrowed = (output,)  # in a tuple, so that it is not a submodule

    def states(
        self,
        features: Tensor,
        cache: DynamicCache,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """The states [B, n, D] that the output layer reads, of features [B, n, D] after the cached ones.

        The cache grows, in place.
        """
        attention_mask, position_ids = chain_after(cache.get_seq_length(), features, attention_mask, position_ids)
        attended, _unused = self.self_attn(
            self.input_layernorm(features),
            position_embeddings=self.rotary(features, position_ids),
            attention_mask=attention_mask,
            past_key_values=cache,
        )
        states: Tensor = self.norm(features + attended)
        return states

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
        """Read tokens [1, n] by their features [1, n, D] after the cached ones, which grow in place."""
        states = self.states(features, past_key_values, attention_mask, position_ids)
        logits = self.borrowed[0](states[:, -logits_to_keep:])
        return CausalLMOutputWithPast(logits=logits, hidden_states=(features, states))
