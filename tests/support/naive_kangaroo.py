"""Kangaroo's adapter and rounds once more, from the paper: no cache, no masks, whole forwards of the target.

Nothing here imports the package under test. In float64 apart from the rotation, which models compute in float32.
"""

from __future__ import annotations

import math

import naive_eagle as naive
import oracle
import torch
from torch import Tensor
from transformers import PreTrainedModel

Weights = dict[str, Tensor]


@torch.no_grad()
def logits(
    weights: Weights, target: PreTrainedModel, exit_layer: int, text: list[int], heads: int, groups: int
) -> Tensor:
    """The adapter's logits [V] after a text, from the states that leave the target's exit layer at all its tokens."""
    seen = target(torch.tensor([text]), use_cache=False, output_hidden_states=True).hidden_states[exit_layer][0]
    read = [naive.rms(state, weights["input_layernorm.weight"], EPS) for state in seen.double()]
    projected = [{x: weights[f"self_attn.{x}_proj.weight"] @ row for x in "qkv"} for row in read]
    size = projected[0]["q"].shape[0] // heads
    keys = [naive.turned(row["k"].view(-1, size), at, 10000.0) for at, row in enumerate(projected)]
    query = naive.turned(projected[-1]["q"].view(heads, size), len(text) - 1, 10000.0)
    mixed = []
    for head in range(heads):
        own = head // groups
        shares = torch.stack([query[head] @ key[own] for key in keys]).div(math.sqrt(size)).softmax(-1)
        mixed.append(sum(share * row["v"].view(-1, size)[own] for share, row in zip(shares, projected, strict=True)))
    state = seen[-1].double() + weights["self_attn.o_proj.weight"] @ torch.cat(mixed)
    return target.get_output_embeddings().weight.double() @ naive.rms(state, weights["norm.weight"], EPS)


EPS = 1e-6


def rounds(
    weights: Weights,
    target: PreTrainedModel,
    exit_layer: int,
    prompt: list[int],
    count: int,
    gamma: int,
    threshold: float,
    shape: tuple[int, int],
) -> list[oracle.Round]:
    """`count` greedy rounds: a draft ends after γ tokens, or after the first with a probability below the threshold."""
    text, done = list(prompt), []
    for _ in range(count):
        drafted: list[int] = []
        while len(drafted) < gamma:
            row = logits(weights, target, exit_layer, text + drafted, *shape)
            drafted.append(oracle.best(row))
            if float(row.softmax(-1).max()) < threshold:
                break
        rows = [oracle.next_logits(target, text + drafted[:at]) for at in range(len(drafted) + 1)]
        done.append(oracle.sps_scan(rows, drafted))
        text += oracle.committed(done[-1:])
    return done
