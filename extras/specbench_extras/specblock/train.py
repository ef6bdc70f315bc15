"""Train SpecBlock's drafter (arXiv 2605.07243): the target answers documents, and the head learns to go on.

The target is frozen; its hidden states are computed on the fly, as are its distributions.
"""

import math
from collections.abc import Sequence

import torch

from specbench.base.console import console, note, say
from specbench.config import UserError, validated
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.heads import find_head
from specbench.methods.heads.eagle3 import check_target
from specbench.training.answered import Answered
from specbench.training.eagle3.fit import draft_ids
from specbench.training.heads import answered_lessons, learn_answers, to_learn
from specbench.training.publish import announce, flush_right, publish
from specbench.training.train import Job
from specbench_extras.specblock.fit import RankBlockTraining, new_head
from specbench_extras.specblock.rank_block_head import RankBlockHead
from specbench_extras.specblock.recipe import RankBlockRecipe
from specbench_extras.specblock.specblock import KIND, rank_block_head

GOES_ON = True  # --warm-up: a head that the training goes on with; see train.py
SHARED = True  # workers may share what it collects; see train.py


def train(job: Job) -> None:
    """Answer the job's documents, fit, write the head to `job.out` and print how often it agrees on held-out ones.

    A head to go on with brings its layers and its draft vocabulary. Raises UserError as `answered_lessons` does.
    """
    assert job.recipe
    recipe = validated(RankBlockRecipe, job.recipe.values, job.recipe.name)
    target = check_target(job.pair, KIND)
    lessons = answered_lessons(job, recipe)
    _, folder, learned, held, facts = lessons
    if job.warm_up:
        head, facts["warm_up"] = earlier_head(job, recipe)
    else:
        ids = draft_ids(learned, recipe.draft_vocabulary, job.pair.vocabulary)
        head = new_head(target, ids, recipe, job.plan.seed)
    training = RankBlockTraining(target, head, learned, job.pair.vocabulary, recipe, job.plan.seed)
    curve = learn_answers(job, training, lessons, facts, lambda held: training.agreement(held)[0][0])
    first, second, in_a_row, classed = training.agreement(held)
    kept = head.ids.cpu()
    trained = {
        **lessons.described(job),
        **curve,
        "held_out_agreement": rounded(first),
        "held_out_second_block": rounded(second),
        "held_out_in_a_row": next(iter(rounded([in_a_row])), None),
        "held_out_classes": next(iter(rounded([classed])), None),
        "config": stored_settings(head.config),
    }
    publish(job.out, KIND, {**head.state_dict(), "d2t": kept - torch.arange(len(kept))}, job.pair, trained)
    note(f"{len(learned)} answers; {head.num_parameters():,} numbers; draft vocabulary of {len(kept)} tokens")
    show(held, first, second, in_a_row, classed)
    announce(job.out, f"answers: {folder}", job.use(job.out))


def earlier_head(job: Job, recipe: RankBlockRecipe) -> tuple[RankBlockHead, str]:
    """The head that a training goes on with, so that it learns, and its hash; its layers and vocabulary are its own.

    Raises UserError if it does not fit the pair's target, and if its blocks are not those of the recipe.
    """
    earlier = find_head(job.begins_with, KIND, job.pair, None)
    head = rank_block_head(earlier, job.pair.models["target"], job.pair.vocabulary)
    if head.slots != recipe.slots:
        raise UserError(f"{job.begins_with} has blocks of {head.slots} slots; say so by --recipe slots={head.slots}")
    weights = {name: tensor for name, tensor in earlier.tensors.items() if name != "d2t"}
    return to_learn(head, weights), earlier.hashes()["head"]


def rounded(values: Sequence[float]) -> list[float]:
    """Shares as a head's file has them, without those of which there are no places."""
    return [round(value, 4) for value in values if not math.isnan(value)]


def show(
    held: Sequence[Answered], first: Sequence[float], second: Sequence[float], in_a_row: float, classed: float
) -> None:
    """Print how often the head's choices are the target's, on documents that it has not learned from."""
    say(f"held out: {len(held)} answers; how often a slot's choice is the target's, given the right tokens before it")
    table = flush_right("", *(f"slot {slot}" for slot in range(1, len(first) + 1)))
    for name, figures in (("first block", first), ("second block", second)):
        table.add_row(name, *("-" if math.isnan(value) else f"{value:.1%}" for value in figures))
    console.print(table)
    if not math.isnan(in_a_row):
        say(f"right in a row, of {len(first)} slots of a first block: {in_a_row:.2f} on the mean")
    if not math.isnan(classed):
        say(f"the rank head says the right class in {classed:.1%} of places")
