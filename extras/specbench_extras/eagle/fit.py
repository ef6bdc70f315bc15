"""Fit a head that goes on with the target's last state: the draft steps of EAGLE-3's trainer, under other losses.

One step is EAGLE's training (arXiv 2401.15077); more of them, each from the head's own features, are the harmonised
contexts of HASS (arXiv 2408.15766). The losses are a regression on the target's states, and cross-entropies with its
distribution, over all tokens and over its likeliest ones.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from specbench.base.hashes import stable_seed
from specbench.engine.models.eagle_head import layer_sizes
from specbench.engine.models.feature_head import FeatureHead
from specbench.engine.session import LAST
from specbench.methods.heads.eagle import new_head
from specbench.training.answered import Answered, PaddedAnswers
from specbench.training.eagle3.fit import DraftStep, Taught, Unrolled
from specbench.training.heads import random_linear
from specbench_extras.eagle.recipe import FeatureRecipe, StateRecipe


def first_head(target: PreTrainedModel, vocabulary: int, fuse: str, seed: int) -> FeatureHead:
    """An untrained head on the target's device, in float32, with random weights that the seed decides."""
    inner, stored = layer_sizes(target)
    head = new_head(target, vocabulary, fuse, inner, stored).float()
    random_linear(head, torch.Generator().manual_seed(stable_seed(seed, "head")))
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return head.to(target.device)


def loss_of(step: DraftStep, wanted: Tensor, recipe: StateRecipe) -> Tensor:
    """The loss of a draft step, summed over its places: it should carry the target's states `wanted` [B, R, D].

    The distance of a place is the mean over its D values (smooth L1).
    """
    assert step.carried is not None
    here = step.counted
    q, p = step.logits[here].float().log_softmax(-1), step.taught[here].float().softmax(-1)
    loss = -recipe.cross_entropy * (p * q).sum()
    if recipe.regression:
        distance = F.smooth_l1_loss(step.carried[here].float(), wanted[here].float(), reduction="none")
        loss = loss + recipe.regression * distance.mean(-1).sum()
    if recipe.distillation:
        best = p.topk(min(recipe.top_k, p.shape[-1]))
        loss = loss - recipe.distillation * (best.values * q.gather(-1, best.indices)).sum()
    return loss


class StateTraining(Unrolled):
    """The training of a head that reads the target's last state, and whose states should be the target's next ones."""

    recipe: StateRecipe

    def losses(self, block: PaddedAnswers) -> list[Tensor]:
        taught = self.taught(block)
        return [
            loss_of(step, states_of(block, taught, number, step.counted.shape[1]), self.recipe)
            for number, step in enumerate(self.drafted(block, taught))
        ]


class FeatureTraining(StateTraining):
    """The training of a head that goes on with the target's last state."""

    head: FeatureHead

    def __init__(
        self, target: PreTrainedModel, answered: Sequence[Answered], vocabulary: int, recipe: FeatureRecipe, seed: int
    ) -> None:
        super().__init__(target, first_head(target, vocabulary, recipe.fuse, seed), LAST, answered, recipe, seed)


def states_of(block: PaddedAnswers, taught: Taught, step: int, count: int) -> Tensor:
    """The target's states [B, R, D] after the tokens that a draft step reads, at the first `count` places."""
    at = block.prompts[:, None] + step + torch.arange(count, device=block.tokens.device)
    at = at.clamp(max=block.tokens.shape[1] - 1)
    return taught.features.gather(1, at[..., None].expand(-1, -1, taught.features.shape[-1]))
