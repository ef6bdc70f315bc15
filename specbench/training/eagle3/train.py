"""Train the draft head of EAGLE-3 (arXiv 2503.01840): the target answers documents, and the head learns to go on.

The target is frozen; its hidden states are computed on the fly. As in the official code, the loss is the cross-entropy
with the target's distribution over the draft vocabulary, at the positions of the answers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from specbench.base.console import console, note, progress, say
from specbench.config import validated
from specbench.engine.models.eagle_head import EagleHead, layers_read, stored_settings
from specbench.methods.eagle3 import KIND, check_target
from specbench.training.answered import Answered
from specbench.training.eagle3.fit import Training, draft_ids
from specbench.training.heads import answered_lessons
from specbench.training.publish import announce, checkpoint_of, flush_right, publish
from specbench.training.recipe import EagleRecipe
from specbench.training.train import Job

SHARED = True  # workers may share what it collects; see train.py


def train(job: Job) -> None:
    """Answer the job's documents, fit, write the head to `job.out` and print how often it agrees on held-out ones.

    Raises UserError as `answered_lessons` does.
    """
    assert job.recipe
    recipe = validated(EagleRecipe, job.recipe.values, job.recipe.name)
    check_target(job.pair)
    lessons = answered_lessons(job, recipe)
    _, folder, learned, held, facts = lessons
    ids = draft_ids(learned, recipe.draft_vocabulary, job.pair.vocabulary)
    training = Training(job.pair.models["target"], learned, ids, recipe, job.plan.seed)
    with progress(f"training {job.out.stem}", training.steps) as advance:
        training.run(checkpoint_of(job.out), facts, advance)
    figures = training.agreement(held)
    trained = {
        **lessons.described(job),
        "held_out_agreement": [round(value, 4) for value in figures if not math.isnan(value)],
        "draft_vocabulary": len(ids),
    }
    publish_eagle_head(job, training.head, trained)
    note(f"{len(learned)} answers, {trained['places']} places to draft from; draft vocabulary of {len(ids)} tokens")
    show(held, figures, job.pair.vocabulary > len(ids))
    announce(job.out, f"answers: {folder}", job.use(job.out))


def publish_eagle_head(job: Job, head: EagleHead, trained: Mapping[str, Any]) -> None:
    """Publish the head's weights by their released names, and d2t."""
    ids = head.ids.cpu()
    tensors = {**head.state_dict(), "d2t": ids - torch.arange(len(ids))}
    layers = list(layers_read(job.pair.models["target"]))
    publish(job.out, KIND, tensors, job.pair, {**trained, "config": stored_settings(head.config), "layers": layers})


def show(held: Sequence[Answered], figures: Sequence[float], reduced: bool) -> None:
    """Print how often the head's choice is the target's, by draft step, on documents that it has not learned from."""
    say(
        f"held out: {len(held)} answers, {sum(document.rows for document in held)} places; "
        "how often the head's choice is the target's, given the right tokens before it"
        + (" (tokens outside the draft vocabulary are misses)" if reduced else "")
    )
    table = flush_right(*(f"step {step}" for step in range(1, len(figures) + 1)))
    table.add_row(*("-" if math.isnan(value) else f"{value:.1%}" for value in figures))
    console.print(table)
