"""SpecBlock's drafter once more, from the names of the released weights: no cache, no masks, no batches.

Nothing here imports the package under test. One row at a time, in float64 apart from the rotation, which the models
compute in float32.
"""

from __future__ import annotations

import math

import torch
from naive_eagle import Weights, rms, turned
from torch import Tensor
from torch.nn import functional as F

Place = tuple[int, int, int]  # the block of a row, its slot and its position


def chain(
    weights: Weights,
    embedding: Tensor,
    tokens: list[int],
    seen: Tensor,
    further: list[tuple[int, int]],
    heads: int = 4,
    groups: int = 2,
    eps: float = 1e-6,
    theta: float = 10000.0,
) -> list[Tensor]:
    """The states [K, D], before the last norm, of the block at the last of `tokens`, then of each further block.

    The first token stands at position 1, and `seen` [n, 3D] are the target's states of the token before each. A further
    block (token, M) begins after the first M slots of the block before it.
    """
    queries = weights["input_layer.position_queries.weight"]
    slots = len(queries)

    def entered(condition: Tensor, token: int) -> list[Tensor]:
        """What enters the first layer in each slot of a block."""
        norm = {name: weights[f"input_layer.{name}_norm.weight"] for name in ("condition", "token", "query")}
        first = [rms(condition, norm["condition"], eps), rms(embedding[token], norm["token"], eps)]
        fuse = weights["input_layer.fuse.weight"]
        return [fuse @ torch.cat([*first, rms(query, norm["query"], eps)]) for query in queries]

    conditions = [weights["input_layer.condition_proj.weight"] @ state for state in seen]
    rows = [row for one, token in zip(conditions, tokens, strict=True) for row in entered(one, token)]
    last = len(tokens) - 1
    where = [(block, slot, block + 1 + slot) for block in range(len(tokens)) for slot in range(slots)]
    kept: dict[int, int] = {}
    results = []
    for number in range(len(further) + 1):
        if number:
            token, cut = further[number - 1]
            kept[last + number - 1] = cut
            rows = rows + entered(results[-1][cut - 1], token)
            where = where + [(last + number, slot, last + 1 + slot) for slot in range(slots)]
        states, layer = rows, 0
        while (prefix := f"layers.{layer}.") + "input_layernorm.weight" in weights:
            if layer:
                before = [states[i - 1] if where[i][1] else states[i] for i in range(len(states))]
                shift = weights[f"shift_proj.{layer - 1}.weight"]
                states = [shift @ torch.cat(both) for both in zip(states, before, strict=True)]
            of = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
            normed = [rms(state, of["input_layernorm.weight"], eps) for state in states]
            keys, values, asked = [], [], []
            for row, (_, _, place) in zip(normed, where, strict=True):
                asked.append(turned((of["self_attn.q_proj.weight"] @ row).view(heads, -1), place, theta))
                keys.append(turned((of["self_attn.k_proj.weight"] @ row).view(heads // groups, -1), place, theta))
                values.append((of["self_attn.v_proj.weight"] @ row).view(heads // groups, -1))
            after = []
            for row, state in enumerate(states):
                read = [other for other in range(len(states)) if reads(where[row], where[other], last, kept)]
                mixed = []
                for head in range(heads):
                    own, query = head // groups, asked[row][head]
                    scores = torch.stack([keys[other][own] for other in read]) @ query / math.sqrt(len(query))
                    mixed.append(scores.softmax(-1) @ torch.stack([values[other][own] for other in read]))
                state = state + of["self_attn.o_proj.weight"] @ torch.cat(mixed)
                inner = rms(state, of["post_attention_layernorm.weight"], eps)
                gate, up, down = (of[f"mlp.{x}_proj.weight"] for x in ("gate", "up", "down"))
                after.append(state + down @ (F.silu(gate @ inner) * (up @ inner)))
            states, layer = after, layer + 1
        results.append(torch.stack(states[-slots:]))
    return results


def reads(row: Place, other: Place, last: int, kept: dict[int, int]) -> bool:
    """True if a row reads another; after block `last`, only the first `kept` slots of it and of later blocks stand."""
    (block, slot, _), (of, at, _) = row, other
    if block == of:
        return at <= slot
    return of < block and (block <= last or of not in kept or at < kept[of])


def predicted(weights: Weights, states: Tensor, eps: float = 1e-6) -> Tensor:
    """Logits [K, draft vocabulary] of states [K, D]."""
    return torch.stack([weights["lm_head.weight"] @ rms(state, weights["norm.weight"], eps) for state in states])


def rank_scores(weights: Weights, states: Tensor, logits: Tensor, eps: float = 1e-6) -> Tensor:
    """The rank head's scores [K, 4], for a vocabulary of at least 20 tokens."""
    scores = []
    for state, row in zip(states, logits.tolist(), strict=True):
        best = sorted(row, reverse=True)[:20]
        total = math.log(math.fsum(math.exp(value - best[0]) for value in best)) + best[0]
        logs = [value - total for value in best]
        known = [*logs[:10], *(logs[0] - logs[i] for i in (1, 2, 4)), math.exp(logs[0])]
        known.append(-math.fsum(math.exp(log) * log for log in logs))
        row_in = torch.cat([rms(state, weights["norm.weight"], eps), torch.tensor(known, dtype=state.dtype)])
        scores.append(weights["rank_head.2.weight"] @ F.silu(weights["rank_head.0.weight"] @ row_in))
    return torch.stack(scores)
