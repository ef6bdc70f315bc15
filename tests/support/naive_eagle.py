"""EAGLE-3's head and tree once more, from the papers and the names of the released weights: no cache, no masks.

Nothing here imports the package under test. One sequence at a time, one position after the other, in float64 apart
from the rotation, which the models compute in float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = dict[str, Tensor]


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [D] over its root mean square."""
    return x / math.sqrt(float((x * x).mean()) + eps) * weight


def turned(x: Tensor, position: int, theta: float) -> Tensor:
    """x [heads, d], its pairs (i, i + d/2) turned by position / theta^(2i/d)."""
    half = x.shape[-1] // 2
    angles = torch.tensor([position / theta ** (i / half) for i in range(half)], dtype=torch.float32)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    low, high = x[:, :half], x[:, half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def states(
    weights: Weights,
    embedding: Tensor,
    tokens: list[int],
    seen: Tensor,
    heads: int,
    groups: int,
    eps: float = 1e-6,
    theta: float = 10000.0,
) -> list[Tensor]:
    """The head's states [D] behind each of `tokens`.

    `seen` [m, 3D] are the target's hidden states that go with the first m of them: of the token before each. Those
    behind read the state before them.
    """
    results: list[Tensor] = []
    keys: list[Tensor] = []
    values: list[Tensor] = []
    prefix = "midlayer."
    for j, token in enumerate(tokens):
        feature = weights["fc.weight"] @ seen[j] if j < len(seen) else results[-1]
        read = torch.cat(
            [
                rms(embedding[token], weights[prefix + "input_layernorm.weight"], eps),
                rms(feature, weights[prefix + "hidden_norm.weight"], eps),
            ]
        )
        query, key, value = ((weights[f"{prefix}self_attn.{x}_proj.weight"] @ read) for x in "qkv")
        query, key = turned(query.view(heads, -1), j, theta), turned(key.view(heads // groups, -1), j, theta)
        keys.append(key)
        values.append(value.view(heads // groups, -1))
        mixed = []
        for head in range(heads):
            own = head // groups
            scores = torch.stack([query[head] @ past[own] for past in keys]) / math.sqrt(query.shape[-1])
            shares = scores.softmax(-1)
            mixed.append(sum(share * past[own] for share, past in zip(shares, values, strict=True)))
        state = feature + weights[prefix + "self_attn.o_proj.weight"] @ torch.cat(mixed)
        inner = rms(state, weights[prefix + "post_attention_layernorm.weight"], eps)
        gate, up, down = (weights[f"{prefix}mlp.{x}_proj.weight"] for x in ("gate", "up", "down"))
        results.append(state + down @ (F.silu(gate @ inner) * (up @ inner)))
    return results


def predicted(weights: Weights, state: Tensor, eps: float = 1e-6) -> Tensor:
    """Logits [draft vocabulary] behind a state."""
    return weights["lm_head.weight"] @ rms(state, weights["norm.weight"], eps)


def tree(logits_behind, top_k: int, depth: int, most: int) -> list[tuple[int, ...]]:
    """The drafted nodes as paths of tokens from the context; `logits_behind(path)` gives logits [V] as a list.

    Level by level: all children of the root are met and read; of the children of the nodes that were read, the best
    `top_k` are read next. Drafted are the best `most` of all that were met. A node's value is the sum of the
    log-probabilities on its path; among equals the one that was met first is better.
    """

    def children(path: tuple[int, ...], value: float) -> list[tuple[float, tuple[int, ...]]]:
        logits = [float(x) for x in logits_behind(path)]
        highest = max(logits)
        total = math.log(math.fsum(math.exp(x - highest) for x in logits)) + highest
        best = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:top_k]
        return [(value + logits[token] - total, (*path, token)) for token in best]

    level = children((), 0.0)
    met = list(level)
    for _ in range(depth):
        read = sorted(level, key=lambda node: -node[0])[:top_k]  # sorted() keeps the order of equals
        level = [child for value, path in read for child in children(path, value)]
        met += level
    kept = sorted(range(len(met)), key=lambda i: (-met[i][0], i))[:most]
    return [met[i][1] for i in sorted(kept)]
