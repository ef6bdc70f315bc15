"""Medusa's and Hydra's heads and rounds once more, from the papers: no cache, no masks, whole forwards of the target.

Nothing here imports the package under test.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import oracle
import torch
from torch import Tensor
from transformers import PreTrainedModel

Weights = dict[str, Tensor]


def block(weights: Weights, name: str, x: Tensor) -> Tensor:
    """x, or a projection of it, + SiLU(W x + b)."""
    inner = weights[f"{name}.linear.weight"] @ x + weights[f"{name}.linear.bias"]
    kept = x
    if f"{name}.res_connection.weight" in weights:
        kept = weights[f"{name}.res_connection.weight"] @ x + weights[f"{name}.res_connection.bias"]
    return kept + inner / (1 + torch.exp(-inner))


def said(weights: Weights, target: PreTrainedModel, head: int, state: Tensor, path: Sequence[int]) -> Tensor:
    """Logits [V] of a head after the target's state [D] and the tokens of a path, the last committed one first."""
    hydra = any(name.startswith("hydra") for name in weights)
    prefix = f"hydra_mlp.{head}" if hydra else str(head)
    if hydra:
        layer = target.get_input_embeddings()
        table = layer.weight.double() * float(getattr(layer, "embed_scale", 1.0))
        state = torch.cat([state, *(table[token] for token in path)])
    number = 0
    while f"{prefix}.{number}.linear.weight" in weights:
        state = block(weights, f"{prefix}.{number}", state)
        number += 1
    own = f"hydra_lm_head.{head}" if hydra else f"{prefix}.{number}"
    if f"{own}.weight" not in weights:
        return target.get_output_embeddings().weight.double() @ state
    return weights[f"{own}.weight"] @ state + weights.get(f"{own}.bias", 0)


def nodes(accuracies: Sequence[Sequence[float]], count: int) -> list[tuple[int, ...]]:
    """The `count` paths of ranks with the highest products of accuracies, level by level. By enumeration."""
    every = [
        path
        for depth in range(1, len(accuracies) + 1)
        for path in itertools.product(*(range(len(row)) for row in accuracies[:depth]))
    ]
    worth = {path: math.prod(row[rank] for row, rank in zip(accuracies, path, strict=False)) for path in every}
    best = sorted(every, key=lambda path: (-worth[path], len(path)))[:count]
    return sorted(best, key=lambda path: (len(path), path))


@torch.no_grad()
def rounds(
    weights: Weights,
    target: PreTrainedModel,
    accuracies: Sequence[Sequence[float]],
    prompt: list[int],
    count: int,
    size: int,
) -> list[oracle.Round]:
    """`count` greedy rounds with trees of `size` nodes."""
    text, done = list(prompt), []
    for _ in range(count):
        seen = target(torch.tensor([text[:-1]]), use_cache=False, output_hidden_states=True).hidden_states[-1][0, -1]
        tokens: dict[tuple[int, ...], int] = {}
        for path in nodes(accuracies, size):
            before = [text[-1], *(tokens[path[:depth]] for depth in range(1, len(path)))]
            row = said(weights, target, len(path) - 1, seen.double(), before).tolist()
            tokens[path] = sorted(range(len(row)), key=lambda token: -row[token])[path[-1]]
        stands: tuple[int, ...] = ()
        while True:
            here = [*text, *(tokens[stands[:depth]] for depth in range(1, len(stands) + 1))]
            wanted = oracle.best(oracle.next_logits(target, here))
            further = [path for path in tokens if path[:-1] == stands and len(path) == len(stands) + 1]
            chosen = [path for path in further if tokens[path] == wanted]
            if not chosen:
                break
            (stands,) = chosen
        done.append(oracle.Round(list(tokens.values()), len(stands), wanted, []))
        text = [*here, wanted]
    return done
