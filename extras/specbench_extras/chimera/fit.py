"""Fit Chimera's head (arXiv 2402.15758): draft steps from every place of the answers, under EAGLE's losses.

What a step drafts depends on tokens and the target's states alone, not on what the head made of earlier ones.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import repeat_kv

from specbench.base.hashes import stable_seed
from specbench.engine.models.draft_heads import ResidualBlock
from specbench.engine.models.eagle_head import layer_sizes
from specbench.engine.models.eagle_steps import rotated
from specbench.engine.session import LAST
from specbench.training.answered import Answered, PaddedAnswers
from specbench.training.eagle3.fit import DraftStep, Taught, unroll
from specbench.training.heads import random_linear
from specbench_extras.chimera.chimera import new_head
from specbench_extras.chimera.chimera_head import READ, ChimeraHead
from specbench_extras.eagle.fit import StateTraining
from specbench_extras.eagle.recipe import StateRecipe


def first_head(target: PreTrainedModel, vocabulary: int, seed: int) -> ChimeraHead:
    """An untrained head on the target's device, in float32.

    As in the official code the residual block passes on what it reads, and the output layer is the target's twice. The
    other layers have random weights that the seed decides.
    """
    head = new_head(target, vocabulary, *layer_sizes(target)).float()
    random_linear(head, torch.Generator().manual_seed(stable_seed(seed, "head")))
    with torch.no_grad():
        for block in head.modules():
            if isinstance(block, ResidualBlock):
                nn.init.zeros_(block.linear.weight)
                nn.init.zeros_(block.linear.bias)
        output = target.get_output_embeddings().weight[:vocabulary]
        head.output.weight.copy_(torch.cat([output, output], -1))
    return head.to(target.device)


def draft_steps(
    head: ChimeraHead, text: Tensor, states: Tensor, at: Tensor, read: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Draft from places `at` of texts in steps that read `read`, as the head will when decoding.

    Shapes are those of EAGLE-3's `draft_steps`; in place of features it yields the layer's states [B, R, D], which
    should be the target's. At place i the target has read the text up to x_i. Step k encodes its token and the two
    before it, and attends to the target's states of x_0 … x_i and to the encodings of the steps up to k.
    """
    attention, norm, length = head.attention, head.layer.input_layernorm, text.shape[1]
    (places, steps), held = read.shape[1:], at.clamp(max=length - 2)
    before = torch.stack([(at - back).clamp(0, length - 1) for back in reversed(range(READ - 1))], -1)
    path = torch.cat([text.gather(1, before.flatten(1)).view(before.shape), read], -1)  # [B, R, 2 + S]
    encoded = head.encode(head.embed(path).unfold(2, READ, 1).mT.flatten(-2))  # [B, R, S, D]
    stands = head.fuse(states)
    state = stands.gather(1, held[..., None].expand(-1, -1, stands.shape[-1]))

    def parts(projection: nn.Module, of: Tensor) -> Tensor:
        return projection(norm(of)).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)  # [B, heads, n, d]

    def keys_and_values(of: Tensor, positions: Tensor) -> list[Tensor]:
        keys, _ = rotated(head, parts(attention.k_proj, of), positions)
        return [repeat_kv(some, attention.num_key_value_groups) for some in (keys, parts(attention.v_proj, of))]

    everywhere = torch.arange(length, device=text.device)[None]
    positions = (at[..., None] + 1 + torch.arange(steps, device=at.device)).flatten(1)
    keys, values = keys_and_values(stands, everywhere)
    own_keys, own_values = (
        some.unflatten(2, (places, steps)) for some in keys_and_values(encoded.flatten(1, 2), positions)
    )
    blocked = (everywhere > held[..., None])[:, None]  # [B, 1, R, T]
    for step in range(steps):
        queries, _ = rotated(head, parts(attention.q_proj, encoded[:, :, step]), at + 1 + step)
        scores = (queries @ keys.transpose(-1, -2)).float().masked_fill(blocked, -torch.inf)
        own = (queries[..., None, :] * own_keys[..., : step + 1, :]).sum(-1).float()
        weights = (torch.cat([scores, own], -1) * attention.scaling).softmax(-1).to(values.dtype)
        mixed = weights[..., :length] @ values
        mixed = mixed + (weights[..., length:, None] * own_values[..., : step + 1, :]).sum(-2)
        attended = attention.o_proj(mixed.transpose(1, 2).flatten(2))
        both = head.finish(encoded[:, :, step], head.standing(state), attended)
        yield head.predict(both), both[..., stands.shape[-1] :]


class ChimeraTraining(StateTraining):
    """The training of Chimera's head."""

    head: ChimeraHead

    def __init__(
        self, target: PreTrainedModel, answered: Sequence[Answered], vocabulary: int, recipe: StateRecipe, seed: int
    ) -> None:
        super().__init__(target, first_head(target, vocabulary, seed), LAST, answered, recipe, seed)

    def drafted(self, block: PaddedAnswers, taught: Taught) -> list[DraftStep]:
        return unroll(self.head, block, taught, self.recipe.steps, draft_steps)
