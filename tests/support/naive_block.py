"""A block drafter once more, from the paper and the names of the released weights: no cache, no masks, no batches.

Nothing here imports the package under test. One block at a time, one slot after the other, in float64 apart from the
rotation, which the models compute in float32.
"""

from __future__ import annotations

import math

import torch
from naive_eagle import Weights, rms, turned
from torch import Tensor
from torch.nn import functional as F


def lattice(
    weights: Weights,
    embedding: Tensor,
    output: Tensor,
    states: Tensor,
    anchor: int,
    size: int,
    heads: int = 4,
    groups: int = 2,
    eps: float = 1e-6,
    theta: float = 10000.0,
) -> Tensor:
    """Logits [size - 1, V] of the slots after `anchor`, the token after those whose target states [n, T D] are given.

    `embedding` and `output` [V, D] are the target's; `groups` heads share a key. Weights without `fc` are DFlare's.
    """
    slots = [embedding[anchor], *[weights["mask"]] * (size - 1)]
    layer = 0
    while (prefix := f"layers.{layer}.") + "input_layernorm.weight" in weights:
        of = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
        context = [rms(joined(weights, state, layer), weights["hidden_norm.weight"], eps) for state in states]
        read = [rms(slot, of["input_layernorm.weight"], eps) for slot in slots]
        keys, values = [], []
        for place, row in enumerate([*context, *read]):
            own = "" if "fc.weight" in weights or place >= len(context) else "_target"
            key = (of[f"self_attn.k_proj{own}.weight"] @ row).view(heads // groups, -1)
            key = torch.stack([rms(one, of["self_attn.k_norm.weight"], eps) for one in key])
            keys.append(turned(key, place, theta))
            values.append((of[f"self_attn.v_proj{own}.weight"] @ row).view(heads // groups, -1))
        after = []
        for index, (slot, row) in enumerate(zip(slots, read, strict=True)):
            query = (of["self_attn.q_proj.weight"] @ row).view(heads, -1)
            query = torch.stack([rms(one, of["self_attn.q_norm.weight"], eps) for one in query])
            query = turned(query, len(context) + index, theta)
            mixed = []
            for head in range(heads):
                scores = torch.stack([query[head] @ key[head // groups] for key in keys]) / math.sqrt(query.shape[-1])
                shares = scores.softmax(-1)
                mixed.append(sum(share * value[head // groups] for share, value in zip(shares, values, strict=True)))
            state = slot + of["self_attn.o_proj.weight"] @ torch.cat(mixed)
            inner = rms(state, of["post_attention_layernorm.weight"], eps)
            gate, up, down = (of[f"mlp.{x}_proj.weight"] for x in ("gate", "up", "down"))
            after.append(state + down @ (F.silu(gate @ inner) * (up @ inner)))
        slots, layer = after, layer + 1
    return torch.stack([output @ rms(slot, weights["norm.weight"], eps) for slot in slots[1:]])


def joined(weights: Weights, state: Tensor, layer: int) -> Tensor:
    """What a layer of the head makes of a token's target states [T D], before the norm: [D]."""
    if "fc.weight" in weights:
        return weights["fc.weight"] @ state
    mix = weights["layer_fusion_weights"][layer].tolist()
    total = sum(math.exp(weight) for weight in mix)
    parts = state.view(len(mix), -1)
    return sum(math.exp(weight) / total * part for weight, part in zip(mix, parts, strict=True))


def text_lattice(
    weights: Weights,
    embedding: Tensor,
    output: Tensor,
    text: list[int],
    size: int,
    heads: int = 4,
    groups: int = 2,
    eps: float = 1e-6,
    theta: float = 10000.0,
) -> Tensor:
    """Logits [size - 1, V] of the slots after a text, by weights of DEER's form, which read its tokens themselves.

    All rows go through all layers. A token of the text but the last reads those up to itself, a slot every row.
    """
    known = len(text) - 1
    rows = [*(embedding[token] for token in text), *[weights["mask"]] * (size - 1)]
    layer = 0
    while (prefix := f"layers.{layer}.") + "input_layernorm.weight" in weights:
        of = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
        parts: dict[str, list[Tensor]] = {"q": [], "k": [], "v": []}  # of each row, by head
        for place, row in enumerate(rows):
            read = rms(row, of["input_layernorm.weight"], eps)
            for name, count in (("q", heads), ("k", groups), ("v", groups)):
                part = (of[f"self_attn.{name}_proj.weight"] @ read).view(count, -1)
                if name != "v":
                    normed = torch.stack([rms(one, of[f"self_attn.{name}_norm.weight"], eps) for one in part])
                    part = turned(normed, place, theta)
                parts[name].append(part)
        after = []
        for index, row in enumerate(rows):
            seen = range(index + 1) if index < known else range(len(rows))
            mixed = []
            for head in range(heads):
                query, group = parts["q"][index][head], head * groups // heads
                scores = torch.stack([query @ parts["k"][i][group] for i in seen]) / math.sqrt(len(query))
                shares = zip(scores.softmax(-1), seen, strict=True)
                mixed.append(sum(share * parts["v"][place][group] for share, place in shares))
            state = row + of["self_attn.o_proj.weight"] @ torch.cat(mixed)
            inner = rms(state, of["post_attention_layernorm.weight"], eps)
            gate, up, down = (of[f"mlp.{x}_proj.weight"] for x in ("gate", "up", "down"))
            after.append(state + down @ (F.silu(gate @ inner) * (up @ inner)))
        rows, layer = after, layer + 1
    return torch.stack([output @ rms(row, weights["norm.weight"], eps) for row in rows[known + 1 :]])
