"""Train a block drafter (DFlash, arXiv 2602.06036): the target answers documents, and the head learns to go on.

The target is frozen; its hidden states are computed on the fly, as are its distributions. The trainer of `dflare`
(arXiv 2606.02091) is the same; its head mixes the target's layers.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from specbench.base.console import console, note, progress, say
from specbench.config import validated
from specbench.engine.models.eagle_head import stored_settings
from specbench.methods.eagle3 import check_target
from specbench.training.answered import Answered
from specbench.training.dflash.fit import Training
from specbench.training.heads import answered_lessons
from specbench.training.publish import announce, checkpoint_of, flush_right, publish
from specbench.training.recipe import BlockRecipe, SlotRecipe
from specbench.training.train import Job

Recipe = TypeVar("Recipe", bound=SlotRecipe)

SHARED = True  # workers may share what it collects; see train.py


def train(job: Job) -> None:
    """As `train_block_head`, by the recipe of DFlash and DFlare."""
    train_block_head(job, BlockRecipe, Training)


def train_block_head(job: Job, recipe_type: type[Recipe], training_type: Callable[..., Training]) -> None:
    """Answer the job's documents, fit, write the head to `job.out` and print how often it agrees on held-out ones.

    Raises UserError as `answered_lessons` does.
    """
    assert job.recipe
    recipe, kind = validated(recipe_type, job.recipe.values, job.recipe.name), job.spec.method
    target = check_target(job.pair, kind)
    lessons = answered_lessons(job, recipe)
    _, folder, learned, held, facts = lessons
    training = training_type(target, learned, job.pair.vocabulary, recipe, job.plan.seed, kind)
    with progress(f"training {job.out.stem}", training.steps) as advance:
        training.run(checkpoint_of(job.out), facts, advance)
    *figures, in_a_row = training.agreement(held)
    head = training.head
    trained = {
        **lessons.described(job),
        "held_out_agreement": [round(value, 4) for value in figures if not math.isnan(value)],
        "held_out_in_a_row": None if math.isnan(in_a_row) else round(in_a_row, 4),
        "config": stored_settings(head.config),
        "layers": list(head.layers_read),
        "block": head.block,
    }
    publish(job.out, kind, head.state_dict(), job.pair, trained)
    reads = f"; it reads the target's layers {trained['layers']}" if head.layers_read else ""
    note(f"{len(learned)} answers; {head.num_parameters():,} numbers{reads}")
    show(held, figures, in_a_row)
    announce(job.out, f"answers: {folder}", job.use(job.out))


def show(held: Sequence[Answered], figures: Sequence[float], in_a_row: float) -> None:
    """Print how often each slot's choice is the target's, on documents that the head has not learned from."""
    say(f"held out: {len(held)} answers; how often a slot's choice is the target's, given the right tokens before it")
    table = flush_right(*(f"slot {slot}" for slot in range(1, len(figures) + 1)))
    table.add_row(*("-" if math.isnan(value) else f"{value:.1%}" for value in figures))
    console.print(table)
    if not math.isnan(in_a_row):
        say(f"right in a row, of {len(figures)} slots: {in_a_row:.2f} on the mean")
