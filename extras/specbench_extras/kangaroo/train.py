"""Train the adapter of Kangaroo (arXiv 2404.18911): it learns to say after the first layers what the target will say.

The target is frozen and answers the documents itself; its states are computed on the fly. As in the official code, the
loss is the cross-entropy with the target's whole distribution, and gradients are clipped by value.
"""

import math
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from specbench.base.console import say
from specbench.base.hashes import stable_seed
from specbench.config import UserError
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.exit_adapter import ExitAdapter
from specbench.methods.layers.kangaroo import KIND, check_target, new_adapter
from specbench.training.answered import Answered, PaddedAnswers, batches, blocks
from specbench.training.heads import AnsweredTraining, Lessons, random_linear
from specbench.training.loop import descend, linear
from specbench.training.template import Figures, HeadTrainer, places
from specbench.training.train import Job
from specbench_extras.kangaroo.recipe import ExitRecipe, KangarooRecipe

SHARED = True  # workers may share what it collects; see train.py

Recipe = TypeVar("Recipe", bound=ExitRecipe)


class Fit(NamedTuple):
    """How an adapter agrees with the target at the P places of a block from which it drafts."""

    loss: Tensor  # summed over the places
    agreed: int  # where the likeliest tokens are the same
    places: int  # P


class AdapterTraining(AnsweredTraining):
    """The training of an adapter, or of several, each after its own number of layers; none learns from another."""

    head: nn.ModuleDict  # the adapters by the number of layers before them
    recipe: ExitRecipe

    def __init__(self, target: PreTrainedModel, answered: Sequence[Answered], recipe: ExitRecipe, seed: int) -> None:
        layers = target.config.get_text_config().num_hidden_layers
        adapters = nn.ModuleDict({str(before): first_adapter(target, seed) for before in recipe.exits(layers)})
        super().__init__(target, adapters, answered, recipe, seed, betas=(0.9, 0.95))  # betas: official code

    def learn(self, batch: Sequence[Answered]) -> float:
        """Make one step, in place; returns its loss, the mean over the places, summed over adapters."""
        places = sum(document.rows for document in batch)
        total = torch.zeros((), device=self.device)
        for block in blocks(batch, self.device):
            loss = torch.stack([part.loss for part in fit(self.target, self.head, block)]).sum() / places
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_value_(self.head.parameters(), self.recipe.clip)
        descend(self.optimizer, math.inf, self.recipe.learning_rate * linear(self.step, self.steps, self.recipe.warmup))
        return float(total)

    @torch.no_grad()
    def agreement(self, answered: Sequence[Answered]) -> list[float]:
        """For each adapter, the share of places where its likeliest token is the target's."""
        fits = [
            fit(self.target, self.head, block)
            for batch in batches(answered, self.recipe.batch, 0)
            for block in blocks(batch, self.device)
        ]
        return [sum(part.agreed for part in own) / sum(part.places for part in own) for own in zip(*fits, strict=True)]


def first_adapter(target: PreTrainedModel, seed: int) -> ExitAdapter:
    """An adapter before its training, in float32 on the target's device, with random weights that the seed decides."""
    adapter = new_adapter(target).float()
    rng = torch.Generator().manual_seed(stable_seed(seed, "adapter"))
    random_linear(adapter, rng)
    return adapter.to(target.device)


def fit(target: PreTrainedModel, adapters: nn.ModuleDict, block: PaddedAnswers) -> list[Fit]:
    """Read a block with target and adapters; they are compared after each answer token but the last.

    The first answer token is the prefill's. Padding follows the documents, where nothing reads it.
    """
    with torch.no_grad():
        out = target(block.tokens, use_cache=False, output_hidden_states=True)
    at = torch.arange(block.tokens.shape[1], device=block.tokens.device)
    drafts = (at >= block.prompts[:, None]) & (at < block.lengths[:, None] - 1)  # [B, T]
    taught = out.logits[drafts].float()
    best, shares = taught.argmax(-1), taught.softmax(-1)
    fits = []
    for before, adapter in adapters.items():
        assert isinstance(adapter, ExitAdapter)
        states = adapter.states(out.hidden_states[int(before)].float(), DynamicCache())[drafts]
        logits = adapter.borrowed[0](states.to(target.dtype)).float()
        loss = F.cross_entropy(logits, shares, reduction="sum")
        fits.append(Fit(loss, int((logits.argmax(-1) == best).sum()), len(logits)))
    return fits


class ExitTrainer(HeadTrainer[Recipe, AdapterTraining], Generic[Recipe]):
    """A trainer of adapters. Raises UserError, too, if the target has no layer after an exit."""

    compared = True

    def load(self) -> None:
        self.target = check_target(self.pair, self.kind)
        layers = self.target.config.get_text_config().num_hidden_layers
        exits = self.recipe.exits(layers)
        if not exits or max(exits) >= layers:
            raise UserError(
                f"the target has {layers} layers, so {self.recipe.deepest} must be {layers - 1} or less; "
                "change it by --recipe"
            )

    def begin(self, lessons: Lessons) -> AdapterTraining:
        return AdapterTraining(self.target, lessons.learned, self.recipe, self.seed)

    @property
    def adapter(self) -> ExitAdapter:
        """The first adapter."""
        adapter = next(iter(self.training.head.values()))
        assert isinstance(adapter, ExitAdapter)
        return adapter


class KangarooTrainer(ExitTrainer[KangarooRecipe]):
    """The trainer of one adapter."""

    recipe_type = KangarooRecipe
    kind = KIND

    def tensors(self) -> dict[str, Tensor]:
        return self.adapter.state_dict()

    def described(self, lessons: Lessons, after: Figures, before: Figures) -> dict[str, Any]:
        return {
            "held_out_agreement": round(after[0], 4),
            "held_out_agreement_untrained": round(before[0], 4),
            "config": stored_settings(self.adapter.config),
        }

    def show(self, held: Sequence[Answered], after: Figures, before: Figures) -> None:
        say(
            f"{places(held)}; the adapter's choice is the target's at {after[0]:.1%} of them, before training at "
            f"{before[0]:.1%}"
        )


def train(job: Job) -> None:
    """As `HeadTrainer.train`."""
    KangarooTrainer(job).train()
