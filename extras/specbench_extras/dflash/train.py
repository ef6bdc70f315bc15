"""Train a block drafter (DFlash, arXiv 2602.06036): the target answers documents, and the head learns to go on.

The target is frozen; its hidden states are computed on the fly, as are its distributions. The trainer of `dflare`
(arXiv 2606.02091) is the same; its head mixes the target's layers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from specbench.base.console import console, note, say
from specbench.config import UserError, validated
from specbench.engine.models.block_head import BlockHead
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.heads import read_head
from specbench.methods.heads.eagle3 import check_target
from specbench.training.answered import Answered
from specbench.training.heads import answered_lessons, learn_answers
from specbench.training.publish import announce, flush_right, publish
from specbench.training.train import Job
from specbench_extras.dflash.fit import SlotTraining
from specbench_extras.dflash.recipe import BlockRecipe, SlotRecipe

Recipe = TypeVar("Recipe", bound=SlotRecipe)

GOES_ON = True  # --warm-up: the weights begin as those of a head of the same sizes; see train.py
SHARED = True  # workers may share what it collects; see train.py


def train(job: Job) -> None:
    """As `train_block_head`, by the recipe of DFlash and DFlare."""
    train_block_head(job, BlockRecipe, SlotTraining)


def train_block_head(job: Job, recipe_type: type[Recipe], training_type: Callable[..., SlotTraining]) -> None:
    """Answer the job's documents, fit, write the head to `job.out` and print how often it agrees on held-out ones.

    Raises UserError as `answered_lessons` does.
    """
    assert job.recipe
    recipe, kind = validated(recipe_type, job.recipe.values, job.recipe.name), job.spec.method
    target = check_target(job.pair, kind)
    lessons = answered_lessons(job, recipe)
    _, folder, learned, held, facts = lessons
    training = training_type(target, learned, job.pair.vocabulary, recipe, job.plan.seed, kind)
    if job.warm_up:
        facts |= {"warm_up": begin_with(job.warm_up, training.head, job)}
    curve = learn_answers(job, training, lessons, facts, lambda held: training.agreement(held)[0])
    *figures, in_a_row = training.agreement(held)
    head = training.head
    trained = {
        **lessons.described(job),
        **curve,
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


def begin_with(path: Path, head: BlockHead, job: Job) -> str:
    """Give a head the weights of an earlier one, in place, and return their hash.

    Raises UserError for a file that is no head of the kind and the pair, and for one of other sizes.
    """
    kind = job.spec.method
    earlier = read_head(path, kind, job.pair, None)
    sizes = {"layers": earlier.trained.get("layers"), "block": earlier.trained.get("block")}
    if sizes != {"layers": list(head.layers_read), "block": head.block} or shapes(earlier.tensors) != shapes(
        head.state_dict()
    ):
        raise UserError(
            f"{path} is a head of other sizes than the recipe's; give its layers, features and block by --recipe"
        )
    head.load_state_dict(dict(earlier.tensors))
    return earlier.hashes()["head"]


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def show(held: Sequence[Answered], figures: Sequence[float], in_a_row: float) -> None:
    """Print how often each slot's choice is the target's, on documents that the head has not learned from."""
    say(f"held out: {len(held)} answers; how often a slot's choice is the target's, given the right tokens before it")
    table = flush_right(*(f"slot {slot}" for slot in range(1, len(figures) + 1)))
    table.add_row(*("-" if math.isnan(value) else f"{value:.1%}" for value in figures))
    console.print(table)
    if not math.isnan(in_a_row):
        say(f"right in a row, of {len(figures)} slots: {in_a_row:.2f} on the mean")
