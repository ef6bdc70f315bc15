"""Draft heads that go on with the target's last state: EAGLE (arXiv 2401.15077), and others that fuse it otherwise.

A token's embedding and the feature before it are fused to the input of one decoder layer without a first norm. Its
state is taken for the target's next one: the target's own output layer says the token after it. The names of weights
and their layout are those of the released checkpoints of EAGLE and EAGLE-2 (SafeAILab/EAGLE).
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm

from specbench.engine.models.eagle_head import LayerHead


class Joined(nn.Linear):
    """EAGLE's: a linear layer over the embedding and the feature, side by side."""

    def __init__(self, width: int) -> None:
        super().__init__(2 * width, width)

    def forward(self, embedded: Tensor, features: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(torch.cat([embedded, features], -1))


class Sampled(nn.Module):
    """FSPAD's (arXiv 2408.15562): the token gates the dimensions of a projected feature.

    Our inference: the paper's full text was not available. W_d(SiLU(W_g e) * W_u f), as wide inside as outside.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(width, width) for _ in range(3))

    def forward(self, embedded: Tensor, features: Tensor) -> Tensor:
        fused: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(embedded)) * self.up_proj(features))
        return fused


class Gated(nn.Module):
    """Dovetail's (arXiv 2412.18934, dynamic gating fusion): z * h + (1 - z) * g.

    h = W_f f, g = SiLU(W_e e), and z = sigmoid(W_z [h; g]).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.feature_proj, self.token_proj = (nn.Linear(width, width) for _ in range(2))
        self.gate_proj = nn.Linear(2 * width, width)

    def forward(self, embedded: Tensor, features: Tensor) -> Tensor:
        feature, token = self.feature_proj(features), nn.functional.silu(self.token_proj(embedded))
        share = self.gate_proj(torch.cat([feature, token], -1)).sigmoid()
        fused: Tensor = share * feature + (1 - share) * token
        return fused


FUSES: dict[str, type[nn.Module]] = {"fc": Joined, "gated": Sampled, "dgf": Gated}


class FeatureLayer(nn.Module):
    """A Llama layer that reads what is fused as it is."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, layer_idx=0)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)


class FeatureHead(LayerHead):
    """A head that reads the target's last state, and whose states stand for it on drafted tokens.

    Its vocabulary is the target's. FSPAD's head says tokens by its state, and makes the feature that it carries by a
    further layer of it (`carried`): the two parts of its loss act on different outputs.
    """

    def __init__(self, config: LlamaConfig, fuse: str, *borrowed: nn.Module) -> None:
        """`borrowed` are the target's embedding and its output layer."""
        super().__init__(config, torch.arange(config.vocab_size), *borrowed)
        self.fc = FUSES[fuse](config.hidden_size)
        self.layers = nn.ModuleList([FeatureLayer(config)])
        self.carried = nn.Linear(config.hidden_size, config.hidden_size) if fuse == "gated" else nn.Identity()

    @property
    def layer(self) -> Any:
        return self.layers[0]

    @property
    def attention(self) -> LlamaAttention:
        attention: LlamaAttention = self.layer.self_attn
        return attention

    def fuse(self, states: Tensor) -> Tensor:
        return states.to(self.dtype)

    def read(self, embedded: Tensor, features: Tensor) -> Tensor:
        fused: Tensor = self.fc(embedded, features)
        return fused

    def finish(self, read: Tensor, features: Tensor, attended: Tensor) -> Tensor:
        state = read + attended
        finished: Tensor = state + self.layer.mlp(self.layer.post_attention_layernorm(state))
        return finished

    def carry(self, states: Tensor, embedded: Tensor, features: Tensor) -> Tensor:
        carried: Tensor = self.carried(states)
        return carried

    def predict(self, states: Tensor) -> Tensor:
        output = self.borrowed[1]
        logits: Tensor = output(states.to(next(output.parameters()).dtype))
        return logits[..., : len(self.ids)]
