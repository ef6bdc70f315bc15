"""Train the draft head of EAGLE-3 (arXiv 2503.01840): the target answers documents, and the head learns to go on.

The target is frozen; its hidden states are computed on the fly. As in the official code the loss is the cross-entropy
with the target's distribution over the draft vocabulary, at the places of the answers.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.table import Table

from specbench.config import UserError, validated
from specbench.console import console, progress
from specbench.decoding.types import Sampling
from specbench.eagle_head import EagleHead, layers_read, told_of
from specbench.heads import write_head
from specbench.methods.eagle3 import KIND, check_target
from specbench.train import Job
from specbench.train.documents import held_apart, training_documents
from specbench.train.eagle3_data import Answered, answer_all, draft_ids
from specbench.train.eagle3_fit import Training
from specbench.train.recipe import EagleRecipe

HELD_OUT = 40  # one document in so many is kept for the figures at the end


def train(job: Job) -> None:
    """Answer the job's documents, fit, write the head to `job.out` and print how often it agrees on held-out ones.

    The answers stay in NAME.answers/ beside NAME.safetensors, a file for some documents each. Raises UserError where
    there is nothing to learn.
    """
    assert job.recipe
    if job.grid:
        raise UserError("eagle3 is trained one head at a time; leave out --grid")
    recipe = validated(EagleRecipe, job.recipe.values, job.recipe.name)
    check_target(job.pair)
    documents = training_documents(job.plan, job.pair, 0, job.data)
    folder = job.out.with_name(f"{job.out.stem}.answers")
    if folder.exists():
        console.print(f"going on with the answers in {folder}", highlight=False, soft_wrap=True)
    with progress("answering", recipe.answers * len(documents)) as advance:
        sampling = Sampling(float(recipe.temperature))
        answered = answer_all(job.pair, documents, recipe.answers, sampling, job.plan.seed, folder, advance)
    learned, held = apart(answered, recipe.length, job.plan.seed)
    facts = {**recipe.model_dump(), "seed": job.plan.seed, "data": digest([*learned, *held])}
    ids = draft_ids(learned, recipe.draft_vocabulary, job.pair.vocabulary)
    training = Training(job.pair.models["target"], learned, ids, recipe, job.plan.seed)
    checkpoint = job.out.with_suffix(".checkpoint.pt")
    with progress(f"training {job.out.stem}", training.steps) as advance:
        training.run(checkpoint, facts, advance)
    figures = training.agreement(held)
    trained = {
        **facts,
        "suite": job.plan.suite,
        "tasks": list(dict.fromkeys(document.task for document in documents)),
        "documents": len(documents),
        "learned_answers": len(learned),
        "places": sum(one.rows for one in learned),
        "held_out_answers": len(held),
        "held_out_agreement": [round(value, 4) for value in figures if not math.isnan(value)],
        "draft_vocabulary": len(ids),
    }
    write_eagle_head(job, training.head, trained)
    checkpoint.unlink(missing_ok=True)
    console.print(
        f"{len(learned)} answers, {trained['places']} places to draft from; draft vocabulary of {len(ids)} tokens",
        highlight=False,
    )
    show(held, figures, job.pair.vocabulary > len(ids))
    console.print(f"{job.out}; answers: {folder}", highlight=False, soft_wrap=True)
    console.print(f"next: {job.use(job.out)}", highlight=False, soft_wrap=True)


def write_eagle_head(job: Job, head: EagleHead, trained: Mapping[str, Any]) -> None:
    """The head as a file: its weights by their released names, and d2t."""
    ids = head.ids.cpu()
    tensors = {**head.state_dict(), "d2t": ids - torch.arange(len(ids))}
    layers = list(layers_read(job.pair.models["target"]))
    write_head(job.out, KIND, tensors, job.pair, {**trained, "config": told_of(head.config), "layers": layers})


def apart(answered: Sequence[Answered], length: int, seed: int) -> tuple[list[Answered], list[Answered]]:
    """Answers to learn from and those of held-out documents, cut to `length` tokens and each once.

    Raises UserError if there are too few.
    """
    cut = {(one.name, *one.tokens[:length]): Answered(one.name, one.tokens[:length], one.prompt) for one in answered}
    usable = [one for one in cut.values() if one.rows > 0]
    names = dict.fromkeys(one.name for one in usable)
    if len(names) < 2:
        raise UserError(
            f"{len(names)} documents have answers that are long enough to learn from; take more --documents"
            + (", or a larger length by --recipe" if any(one.prompt + 2 > length for one in answered) else "")
        )
    held = set(held_apart(names, seed, HELD_OUT)[1])
    return [one for one in usable if one.name not in held], [one for one in usable if one.name in held]


def digest(answered: Sequence[Answered]) -> str:
    """Of all that is learned from, 16 hexadecimal digits."""
    told = [[one.name, one.prompt, one.tokens] for one in answered]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def show(held: Sequence[Answered], figures: Sequence[float], reduced: bool) -> None:
    """Print how often the head chooses what the target does, by draft step, on documents that it did not learn from."""
    console.print(
        f"held out: {len(held)} answers, {sum(one.rows for one in held)} places; "
        "how often the head's choice is the target's, given the right tokens before it"
        + (" (tokens outside the draft vocabulary are misses)" if reduced else ""),
        highlight=False,
        soft_wrap=True,
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for step in range(1, len(figures) + 1):
        table.add_column(f"step {step}", justify="right")
    table.add_row(*("-" if math.isnan(value) else f"{value:.1%}" for value in figures))
    console.print(table)
