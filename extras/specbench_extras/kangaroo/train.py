"""Train the adapter of Kangaroo (arXiv 2404.18911): it learns to say after the first layers what the target will say.

The target is frozen and answers the documents itself; its states are computed on the fly. As in the official code, the
loss is the cross-entropy with the target's whole distribution, and gradients are clipped by value.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from specbench.base.console import note, say
from specbench.base.hashes import stable_seed
from specbench.config import UserError, validated
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.exit_adapter import ExitAdapter
from specbench.methods.layers.kangaroo import KIND, check_target, new_adapter
from specbench.training.answered import Answered, PaddedAnswers, batches, blocks
from specbench.training.eagle3.fit import schedule
from specbench.training.heads import AnsweredTraining, Lessons, answered_lessons, learn_answers, random_linear
from specbench.training.loop import descend
from specbench.training.publish import announce, publish
from specbench.training.train import Job
from specbench_extras.kangaroo.recipe import ExitRecipe, KangarooRecipe

SHARED = True  # workers may share what it collects; see train.py


class Fit(NamedTuple):
    """How an adapter agrees with the target at the P places of a block from which it drafts."""

    loss: Tensor  # summed over the places
    agreed: int  # where the likeliest tokens are the same
    places: int  # P


class AdapterTraining(AnsweredTraining):
    """The training of an adapter, or of several, each after its own number of layers; none learns from another."""

    head: nn.ModuleDict  # the adapters by the number of layers before them

    def __init__(self, target: PreTrainedModel, answered: Sequence[Answered], recipe: ExitRecipe, seed: int) -> None:
        layers = target.config.get_text_config().num_hidden_layers
        adapters = nn.ModuleDict({str(before): first_adapter(target, seed) for before in recipe.exits(layers)})
        super().__init__(target, adapters, answered, recipe, seed, betas=(0.9, 0.95))  # betas: official code
        self.recipe = recipe

    def learn(self, batch: Sequence[Answered]) -> float:
        """Make one step, in place; returns its loss, the mean over the places, summed over adapters."""
        places = sum(document.rows for document in batch)
        total = torch.zeros((), device=self.device)
        for block in blocks(batch, self.device):
            loss = torch.stack([part.loss for part in fit(self.target, self.head, block)]).sum() / places
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_value_(self.head.parameters(), self.recipe.clip)
        descend(
            self.optimizer, math.inf, self.recipe.learning_rate * schedule(self.step, self.steps, self.recipe.warmup)
        )
        return float(total)

    @torch.no_grad()
    def agreements(self, answered: Sequence[Answered]) -> list[float]:
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


class Learned(NamedTuple):
    """Adapters after their training, which `training` holds."""

    training: AdapterTraining
    lessons: Lessons
    untrained: list[float]  # agreement on held-out answers before the training
    trained: list[float]  # and after it
    curve: dict[str, Any]  # that of the first adapter, as a head's file says it


def learn(job: Job, recipe: ExitRecipe) -> Learned:
    """Have the target answer the job's documents, and train the recipe's adapters.

    Raises UserError as `answered_lessons` does, and if the target has no layer after an exit.
    """
    target = check_target(job.pair, job.spec.method)
    layers = target.config.get_text_config().num_hidden_layers
    if not recipe.exits(layers) or max(recipe.exits(layers)) >= layers:
        name = recipe.deepest
        raise UserError(
            f"the target has {layers} layers, so {name} must be {layers - 1} or less; change it by --recipe"
        )
    lessons = answered_lessons(job, recipe)
    training = AdapterTraining(target, lessons.learned, recipe, job.plan.seed)
    untrained = training.agreements(lessons.held)
    curve = learn_answers(job, training, lessons, lessons.facts, lambda held: training.agreements(held)[0])
    return Learned(training, lessons, untrained, training.agreements(lessons.held), curve)


def train(job: Job) -> None:
    """Train an adapter, write it to `job.out` and print how often it agrees on held-out answers. Errors of `learn`."""
    assert job.recipe
    recipe = validated(KangarooRecipe, job.recipe.values, job.recipe.name)
    training, lessons, (untrained,), (agreement,), curve = learn(job, recipe)
    (adapter,) = training.head.values()
    assert isinstance(adapter, ExitAdapter)
    trained = {
        **lessons.described(job),
        **curve,
        "held_out_agreement": round(agreement, 4),
        "held_out_agreement_untrained": round(untrained, 4),
        "config": stored_settings(adapter.config),
    }
    publish(job.out, KIND, adapter.state_dict(), job.pair, trained)
    note(f"{len(lessons.learned)} answers, {trained['places']} places to draft from")
    say(
        f"held out: {len(lessons.held)} answers, {sum(document.rows for document in lessons.held)} places; the "
        f"adapter's choice is the target's at {agreement:.1%} of them, before training at {untrained:.1%}"
    )
    announce(job.out, f"answers: {lessons.folder}", job.use(job.out))
