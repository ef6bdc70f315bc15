"""Train the draft head of EAGLE-3 (arXiv 2503.01840): the target answers documents, and the head learns to go on.

The target is frozen; its hidden states are computed on the fly. As in the official code, the loss is the cross-entropy
with the target's distribution over the draft vocabulary, at the positions of the answers.
"""

import math
from collections.abc import Sequence

from specbench.base.console import console, note, say
from specbench.config import validated
from specbench.methods.heads.eagle3 import check_target
from specbench.training.answered import Answered
from specbench.training.eagle3.fit import Eagle3Training, draft_ids, new_head
from specbench.training.eagle3.head_file import earlier_head, publish_eagle_head
from specbench.training.heads import answered_lessons, learn_answers
from specbench.training.publish import announce, flush_right
from specbench.training.recipe import EagleRecipe
from specbench.training.train import Job

GOES_ON = True  # --warm-up: a head that the training goes on with; see train.py
SHARED = True  # workers may share what it collects; see train.py


def train(job: Job) -> None:
    """Answer the job's documents, fit, write the head to `job.out` and print how often it agrees on held-out ones.

    A head to go on with brings its draft vocabulary. Raises UserError as `answered_lessons` does.
    """
    assert job.recipe
    recipe = validated(EagleRecipe, job.recipe.values, job.recipe.name)
    target = check_target(job.pair)
    lessons = answered_lessons(job, recipe)
    _, folder, learned, held, facts = lessons
    if job.warm_up:
        head, facts["warm_up"] = earlier_head(job)
    else:
        head = new_head(target, draft_ids(learned, recipe.draft_vocabulary, job.pair.vocabulary), job.plan.seed)
    training = Eagle3Training(target, head, learned, recipe, job.plan.seed)
    curve = learn_answers(job, training, lessons, facts, lambda held: training.agreement(held)[0])
    figures = training.agreement(held)
    trained = {
        **lessons.described(job),
        **curve,
        "held_out_agreement": [round(value, 4) for value in figures if not math.isnan(value)],
        "draft_vocabulary": len(head.ids),
    }
    publish_eagle_head(job, training.head, trained)
    note(
        f"{len(learned)} answers, {trained['places']} places to draft from; draft vocabulary of {len(head.ids)} tokens"
    )
    show(held, figures, job.pair.vocabulary > len(head.ids))
    announce(job.out, f"answers: {folder}", job.use(job.out))


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
