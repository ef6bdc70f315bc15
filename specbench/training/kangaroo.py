"""Train the adapter of Kangaroo (arXiv 2404.18911): it learns to say after the first layers what the target will say.

The target is frozen and answers the documents itself; its states are computed on the fly. As in the official code, the
loss is the cross-entropy with the target's whole distribution, and gradients are clipped by value.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from specbench.base.console import note, progress, say
from specbench.base.seeds import stable_seed
from specbench.config import UserError, validated
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.exit_adapter import ExitAdapter
from specbench.methods.kangaroo import KIND, check_target, new_adapter
from specbench.training.answered import Answered, Block, batches, blocks
from specbench.training.eagle3.fit import schedule
from specbench.training.heads import HeadTraining, answered_lessons, random_linear
from specbench.training.loop import descend
from specbench.training.publish import announce, checkpoint_of, publish
from specbench.training.recipe import KangarooRecipe
from specbench.training.train import Job

SHARED = True  # workers may share what it collects; see train.py


class Fit(NamedTuple):
    """How the adapter agrees with the target at the P places of a block from which it drafts."""

    loss: Tensor  # summed over the places
    agreed: int  # where the likeliest tokens are the same
    places: int  # P


class Training(HeadTraining):
    """The training of an adapter."""

    head: ExitAdapter

    def __init__(
        self, target: PreTrainedModel, answered: Sequence[Answered], recipe: KangarooRecipe, seed: int
    ) -> None:
        adapter = first_adapter(target, seed)
        super().__init__(target, adapter, answered, recipe, seed, betas=(0.9, 0.95))  # betas: official code
        self.recipe = recipe

    def learn(self, batch: Sequence[Answered]) -> float:
        """Make one step, in place; returns its loss, the mean over the places."""
        places = sum(document.rows for document in batch)
        total = torch.zeros((), device=self.device)
        for block in blocks(batch, self.device):
            loss = fit(self.target, self.head, block, self.recipe.exit).loss / places
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_value_(self.head.parameters(), self.recipe.clip)
        descend(
            self.optimizer, math.inf, self.recipe.learning_rate * schedule(self.step, self.steps, self.recipe.warmup)
        )
        return float(total)

    @torch.no_grad()
    def agreement(self, answered: Sequence[Answered]) -> float:
        """The share of places where the adapter's likeliest token is the target's."""
        fits = [
            fit(self.target, self.head, block, self.recipe.exit)
            for batch in batches(answered, self.recipe.batch, 0)
            for block in blocks(batch, self.device)
        ]
        return sum(part.agreed for part in fits) / sum(part.places for part in fits)


def first_adapter(target: PreTrainedModel, seed: int) -> ExitAdapter:
    """An adapter before its training, in float32 on the target's device, with random weights that the seed decides."""
    adapter = new_adapter(target).float()
    rng = torch.Generator().manual_seed(stable_seed(seed, "adapter"))
    random_linear(adapter, rng)
    return adapter.to(target.device)


def fit(target: PreTrainedModel, adapter: ExitAdapter, block: Block, exit_layer: int) -> Fit:
    """Read a block with target and adapter; they are compared after each answer token but the last.

    The first answer token is the prefill's. Padding follows the documents, where nothing reads it.
    """
    with torch.no_grad():
        out = target(block.tokens, use_cache=False, output_hidden_states=True)
    at = torch.arange(block.tokens.shape[1], device=block.tokens.device)
    drafts = (at >= block.prompts[:, None]) & (at < block.lengths[:, None] - 1)  # [B, T]
    states = adapter.states(out.hidden_states[exit_layer].float(), DynamicCache())[drafts]
    logits = adapter.borrowed[0](states.to(target.dtype)).float()
    taught = out.logits[drafts].float()
    loss = F.cross_entropy(logits, taught.softmax(-1), reduction="sum")
    return Fit(loss, int((logits.argmax(-1) == taught.argmax(-1)).sum()), len(logits))


def train(job: Job) -> None:
    """Answer the job's documents, fit, write the adapter to `job.out` and print how often it agrees on held-out ones.

    Raises UserError as `answered_lessons` does, and if the target has no layer after the exit.
    """
    assert job.recipe
    recipe = validated(KangarooRecipe, job.recipe.values, job.recipe.name)
    target = check_target(job.pair)
    layers = target.config.get_text_config().num_hidden_layers
    if recipe.exit >= layers:
        raise UserError(f"the target has {layers} layers, so exit must be {layers - 1} or less; change it by --recipe")
    lessons = answered_lessons(job, recipe)
    _, folder, learned, held, facts = lessons
    training = Training(target, learned, recipe, job.plan.seed)
    untrained = training.agreement(held)
    with progress(f"training {job.out.stem}", training.steps) as advance:
        training.run(checkpoint_of(job.out), facts, advance)
    agreement = training.agreement(held)
    trained = {
        **lessons.described(job),
        "held_out_agreement": round(agreement, 4),
        "held_out_agreement_untrained": round(untrained, 4),
        "config": stored_settings(training.head.config),
    }
    publish(job.out, KIND, training.head.state_dict(), job.pair, trained)
    note(f"{len(learned)} answers, {trained['places']} places to draft from")
    say(
        f"held out: {len(held)} answers, {sum(document.rows for document in held)} places; the adapter's choice is the "
        f"target's at {agreement:.1%} of them, before training at {untrained:.1%}"
    )
    announce(job.out, f"answers: {folder}", job.use(job.out))
