"""Several draft steps of a head of EAGLE's family at many places at once, as it learns by (training-time test).

EAGLE-3 (arXiv 2503.01840, section 3.2).
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

from specbench.engine.models.eagle_head import LayerHead


def draft_steps(
    head: LayerHead, text: Tensor, states: Tensor, at: Tensor, read: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Draft from places `at` [B, R] of texts [B, T] as the head will when decoding, from its own states, in S steps.

    Yields for each step the logits [B, R, draft vocabulary] and the features [B, R, D] that the next step reads.
    `states` [B, T, n D] are the target's after each token of the text, and `read` [B, R, S] the tokens that are read
    after each place, the first of them the text's own. Step 0 at place i reads x_{i+1} and the feature of x_i, and
    attends to all places up to i. Step k reads its token and the state of step k - 1, and attends to step 0 at all
    places up to i and to steps 1 … k at its own place (training-time test).
    """
    attention = head.attention
    rows_of, length = text.shape
    held = at.clamp(max=length - 2)
    fused = head.fuse(states)
    everywhere = head.read(head.embed(text[:, 1:]), fused[:, :-1])  # step 0 at every place
    places = torch.arange(length - 1, device=text.device)[None]
    groups = attention.num_key_value_groups
    shape = (rows_of, -1, attention.head_dim)

    def parts(projected: Tensor) -> Tensor:
        return projected.unflatten(-1, shape[1:]).transpose(1, 2)  # [B, heads, n, d]

    keys, _ = rotated(head, parts(attention.k_proj(everywhere)), places)
    keys, values = repeat_kv(keys, groups), repeat_kv(parts(attention.v_proj(everywhere)), groups)
    blocked = (places > held[..., None])[:, None]  # [B, 1, R, T - 1]
    features = fused.gather(1, held[..., None].expand(-1, -1, fused.shape[-1]))
    step_keys, step_values = [], []
    for step in range(read.shape[-1]):
        embedded = head.embed(read[..., step])
        inputs = head.read(embedded, features)
        queries, rotation = rotated(head, parts(attention.q_proj(inputs)), at + step)
        scores = (queries @ keys.transpose(-1, -2)).float().masked_fill(blocked, -torch.inf)
        if step:
            step_key, _ = rotated(head, parts(attention.k_proj(inputs)), at + step, rotation)
            step_keys.append(repeat_kv(step_key, groups))
            step_values.append(repeat_kv(parts(attention.v_proj(inputs)), groups))
            scores = torch.cat([scores, *((queries * key).sum(-1, keepdim=True).float() for key in step_keys)], -1)
        weights = (scores * attention.scaling).softmax(-1).to(values.dtype)
        mixed = weights[..., : length - 1] @ values
        for i, value in enumerate(step_values):
            mixed = mixed + weights[..., length - 1 + i, None] * value
        after = head.finish(inputs, features, attention.o_proj(mixed.transpose(1, 2).flatten(2)))
        features = head.carry(after, embedded, features)
        yield head.predict(after), features


Rotation = tuple[Tensor, Tensor]


def rotated(head: LayerHead, vectors: Tensor, at: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Rotation]:
    """Keys or queries [B, heads, n, d] rotated by their positions [B or 1, n], and the rotation."""
    rotation = rotation or head.rotary(vectors, at)
    turned, _same = apply_rotary_pos_emb(vectors, vectors[:, :0], *rotation)
    return turned, rotation
