"""Chimera's head once more, from the paper and the released names: one place at a time, no cache, no masks.

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


def encoded(weights: Weights, embedding: Tensor, tokens: list[int], place: int) -> Tensor:
    """The encoding [D] of the token at a place and the two before it; before the text its first token is repeated."""
    x = torch.cat([embedding[tokens[max(0, place - back)]] for back in (2, 1, 0)])
    inner = weights["trimlp.0.linear.weight"] @ x + weights["trimlp.0.linear.bias"]
    return weights["trimlp.1.weight"] @ (x + inner / (1 + torch.exp(-inner)))


def drafted(
    weights: Weights, embedding: Tensor, tokens: list[int], seen: Tensor, heads: int, groups: int
) -> tuple[Tensor, Tensor]:
    """The layer's state [D] and the logits [V] after `tokens`, of which the target has read the first ones.

    `seen` [m, D] are the target's last states after these.
    """
    layer, count = "fast_layer1.0", len(seen)
    rows = [*seen, *(encoded(weights, embedding, tokens, place) for place in range(count, len(tokens)))]
    normed = [naive.rms(row, weights[f"{layer}.input_layernorm.weight"], EPS) for row in rows]
    last = len(rows) - 1

    def projected(name: str, place: int, parts: int) -> Tensor:
        return (weights[f"{layer}.self_attn.{name}_proj.weight"] @ normed[place]).view(parts, -1)

    query = naive.turned(projected("q", last, heads), last, 10000.0)
    keys = [naive.turned(projected("k", place, heads // groups), place, 10000.0) for place in range(len(rows))]
    values = [projected("v", place, heads // groups) for place in range(len(rows))]
    mixed = []
    for head in range(heads):
        own = head // groups
        scores = torch.stack([query[head] @ key[own] for key in keys]) / math.sqrt(query.shape[-1])
        mixed.append(sum(share * value[own] for share, value in zip(scores.softmax(-1), values, strict=True)))
    state = rows[last] + weights[f"{layer}.self_attn.o_proj.weight"] @ torch.cat(mixed)
    inner = naive.rms(state, weights[f"{layer}.post_attention_layernorm.weight"], EPS)
    gate, up = (weights[f"{layer}.mlp.{x}_proj.weight"] @ inner for x in ("gate", "up"))
    state = state + weights[f"{layer}.mlp.down_proj.weight"] @ (F.silu(gate) * up)
    return state, weights["chimera_head.0.0.weight"] @ torch.cat([seen[-1], state])
