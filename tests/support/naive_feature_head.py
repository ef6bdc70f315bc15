"""Heads on the target's last state once more, from the papers and the released names: no cache, no masks.

Nothing here imports the package under test. In float64 apart from the rotation, which models compute in float32.
"""

from __future__ import annotations

import math

import naive_eagle as naive
import torch
from torch import Tensor
from torch.nn import functional as F

Weights = dict[str, Tensor]
EPS = 1e-6


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0)


def fused(weights: Weights, fuse: str, token: Tensor, feature: Tensor) -> Tensor:
    """The layer's input [D], from an embedding and a feature [D]."""
    if fuse == "fc":
        return linear(weights, "fc", torch.cat([token, feature]))
    if fuse == "gated":
        gate = F.silu(linear(weights, "fc.gate_proj", token))
        return linear(weights, "fc.down_proj", gate * linear(weights, "fc.up_proj", feature))
    own, other = linear(weights, "fc.feature_proj", feature), F.silu(linear(weights, "fc.token_proj", token))
    share = torch.sigmoid(linear(weights, "fc.gate_proj", torch.cat([own, other])))
    return share * own + (1 - share) * other


def states(
    weights: Weights, fuse: str, embedding: Tensor, tokens: list[int], seen: Tensor, heads: int, groups: int
) -> tuple[list[Tensor], list[Tensor]]:
    """The states [D] after each of `tokens`, and the features [D] that they make.

    `seen` [m, D] are the target's last states that go with the first m tokens: of the token before each. The later
    ones read the feature before them.
    """
    results: list[Tensor] = []
    made: list[Tensor] = []
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for j, token in enumerate(tokens):
        read = fused(weights, fuse, embedding[token], seen[j] if j < len(seen) else made[-1])
        query, key, value = (linear(weights, f"layers.0.self_attn.{x}_proj", read) for x in "qkv")
        query = naive.turned(query.view(heads, -1), j, 10000.0)
        keys.append(naive.turned(key.view(heads // groups, -1), j, 10000.0))
        values.append(value.view(heads // groups, -1))
        mixed = []
        for head in range(heads):
            own = head // groups
            scores = torch.stack([query[head] @ past[own] for past in keys]) / math.sqrt(query.shape[-1])
            mixed.append(sum(share * past[own] for share, past in zip(scores.softmax(-1), values, strict=True)))
        state = read + linear(weights, "layers.0.self_attn.o_proj", torch.cat(mixed))
        inner = naive.rms(state, weights["layers.0.post_attention_layernorm.weight"], EPS)
        gate, up = (linear(weights, f"layers.0.mlp.{x}_proj", inner) for x in ("gate", "up"))
        state = state + linear(weights, "layers.0.mlp.down_proj", F.silu(gate) * up)
        results.append(state)
        made.append(linear(weights, "carried", state) if "carried.weight" in weights else state)
    return results, made
