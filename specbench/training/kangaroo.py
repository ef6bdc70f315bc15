"""Train the adapter of Kangaroo (arXiv 2404.18911): it learns to say after the first layers what the target will say.

The target is frozen and answers the documents itself; its states are computed on the fly. As in the official code, the
loss is the cross-entropy with the target's whole distribution, and gradients are clipped by value.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from specbench.base.console import note, progress, say
from specbench.base.seeds import stable_seed
from specbench.config import UserError, validated
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.exit_adapter import ExitAdapter
from specbench.engine.types import Sampling
from specbench.measure.manifest import digest
from specbench.methods.kangaroo import KIND, check_target, new_adapter
from specbench.training.documents import training_documents
from specbench.training.eagle3.data import Answered, Block, answer_all, batches, blocks
from specbench.training.eagle3.fit import schedule
from specbench.training.eagle3.train import split
from specbench.training.loop import Epochs, descend
from specbench.training.publish import announce, checkpoint_of, collecting, publish, source
from specbench.training.recipe import KangarooRecipe
from specbench.training.train import Job


class Fit(NamedTuple):
    """How the adapter agrees with the target at the P places of a block from which it drafts."""

    loss: Tensor  # summed over the places
    agreed: int  # where the likeliest tokens are the same
    places: int  # P


class Training(Epochs[list[Answered]]):
    """The training of an adapter; a batch is some answered documents."""

    state_keys = ("adapter", "optimizer", "step")
    checkpoint_seconds = 120.0

    def __init__(
        self, target: PreTrainedModel, answered: Sequence[Answered], recipe: KangarooRecipe, seed: int
    ) -> None:
        super().__init__(len(answered), recipe.batch, recipe.epochs)
        self.target, self.answered, self.recipe, self.seed = target, answered, recipe, seed
        self.device = target.device
        self.adapter = first_adapter(target, seed)
        self.optimizer = torch.optim.AdamW(
            self.adapter.parameters(),
            lr=recipe.learning_rate,
            betas=(0.9, 0.95),  # official code
            weight_decay=recipe.weight_decay,
        )

    def batches(self, epoch: int) -> list[list[Answered]]:
        return batches(self.answered, self.recipe.batch, stable_seed(self.seed, "epoch", epoch))

    def learn(self, batch: Sequence[Answered]) -> float:
        """Make one step, in place; returns its loss, the mean over the places."""
        places = sum(document.rows for document in batch)
        total = torch.zeros((), device=self.device)
        for block in blocks(batch, self.device):
            loss = fit(self.target, self.adapter, block, self.recipe.exit).loss / places
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_value_(self.adapter.parameters(), self.recipe.clip)
        descend(
            self.optimizer, math.inf, self.recipe.learning_rate * schedule(self.step, self.steps, self.recipe.warmup)
        )
        return float(total)

    @torch.no_grad()
    def agreement(self, answered: Sequence[Answered]) -> float:
        """The share of places where the adapter's likeliest token is the target's."""
        fits = [
            fit(self.target, self.adapter, block, self.recipe.exit)
            for batch in batches(answered, self.recipe.batch, 0)
            for block in blocks(batch, self.device)
        ]
        return sum(one.agreed for one in fits) / sum(one.places for one in fits)

    def state(self) -> dict[str, Any]:
        return {"adapter": self.adapter.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.adapter.load_state_dict(state["adapter"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        self.advance(self.step)


def first_adapter(target: PreTrainedModel, seed: int) -> ExitAdapter:
    """An adapter before its training, in float32 on the target's device, with random weights that the seed decides."""
    adapter = new_adapter(target).float()
    rng = torch.Generator().manual_seed(stable_seed(seed, "adapter"))
    with torch.no_grad():
        for module in adapter.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=module.in_features**-0.5, generator=rng)
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

    The answers stay in NAME.answers/ beside NAME.safetensors. Raises UserError if there is nothing to learn, or the
    target has no layer after the exit.
    """
    assert job.recipe
    if job.grid:
        raise UserError("kangaroo is trained one adapter at a time; leave out --grid")
    recipe = validated(KangarooRecipe, job.recipe.values, job.recipe.name)
    target = check_target(job.pair)
    layers = target.config.get_text_config().num_hidden_layers
    if recipe.exit >= layers:
        raise UserError(f"the target has {layers} layers, so exit must be {layers - 1} or less; change it by --recipe")
    documents = training_documents(job.plan, job.pair, 0, job.data)
    folder = job.out.with_name(f"{job.out.stem}.answers")
    with collecting(folder, "answering", recipe.answers * len(documents), "the answers") as advance:
        sampling = Sampling(float(recipe.temperature))
        answered = answer_all(job.pair, documents, recipe.answers, sampling, job.plan.seed, folder, advance)
    learned, held = split(answered, recipe.length, job.plan.seed)
    rows = [[document.name, document.prompt, document.tokens] for document in (*learned, *held)]
    facts = {**recipe.model_dump(), "seed": job.plan.seed, "data": digest(rows)}
    training = Training(target, learned, recipe, job.plan.seed)
    untrained = training.agreement(held)
    with progress(f"training {job.out.stem}", training.steps) as advance:
        training.run(checkpoint_of(job.out), facts, advance)
    agreement = training.agreement(held)
    trained = {
        **facts,
        **source(job, documents),
        "learned_answers": len(learned),
        "places": sum(document.rows for document in learned),
        "held_out_answers": len(held),
        "held_out_agreement": round(agreement, 4),
        "held_out_agreement_untrained": round(untrained, 4),
        "config": stored_settings(training.adapter.config),
    }
    publish(job.out, KIND, training.adapter.state_dict(), job.pair, trained)
    note(f"{len(learned)} answers, {trained['places']} places to draft from")
    say(
        f"held out: {len(held)} answers, {sum(document.rows for document in held)} places; the adapter's choice is the "
        f"target's at {agreement:.1%} of them, before training at {untrained:.1%}"
    )
    announce(job.out, f"answers: {folder}", job.use(job.out))
