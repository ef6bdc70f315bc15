"""Train EAGLE-3's head by its trees: `specbench train --method eagle3 --preset gto`.

The head is an earlier one: that of --warm-up, or the one that ships with the pair.
"""

import math

from specbench.base.console import note, say
from specbench.config import validated
from specbench.training.eagle3.head_file import earlier_head, publish_eagle_head
from specbench.training.heads import answered_lessons, learn_answers
from specbench.training.publish import announce
from specbench.training.train import Job
from specbench_extras.gto.fit import GroupTraining
from specbench_extras.gto.recipe import GroupRecipe

PRESET = "gto"
DECODES = True  # the target verifies trees; see train.py
SHARED = True  # workers may share the answers that it collects


def train(job: Job) -> None:
    """Answer the job's documents, go on with a head and write it to `job.out`. Raises UserError."""
    assert job.recipe
    recipe = validated(GroupRecipe, job.recipe.values, job.recipe.name)
    head, begun = earlier_head(job)
    lessons = answered_lessons(job, recipe)
    _, folder, learned, held, facts = lessons
    facts |= {"preset": PRESET, "warm_up": begun}
    training = GroupTraining(job.pair, head, learned, recipe, job.plan.seed)
    curve = learn_answers(job, training, lessons, facts, lambda held: training.agreement(held)[0])
    agreement, (after, before) = training.agreement(held), training.tree_rewards(held)
    trained = {
        **lessons.described(job),
        **curve,
        "held_out_agreement": [round(value, 4) for value in agreement if not math.isnan(value)],
        "held_out_reward": [None if math.isnan(value) else round(value, 4) for value in (before, after)],
        "draft_vocabulary": len(head.ids),
    }
    publish_eagle_head(job, head, trained)
    note(f"{len(learned)} answers; {recipe.groups} groups of {recipe.group} trees of each in a pass")
    say(f"held out: {len(held)} answers; mean reward of a tree {before:.3f} → {after:.3f}")
    announce(job.out, f"answers: {folder}", job.use(job.out))
