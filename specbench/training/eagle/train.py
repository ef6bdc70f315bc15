"""Train a head that goes on with the target's last state, by the recipe of EAGLE, HASS, FSPAD or Dovetail.

The target is frozen and answers the documents itself; its states are computed on the fly.
"""

import math

from specbench.base.console import note, progress
from specbench.config import UserError, validated
from specbench.engine.models.eagle_head import stored_settings
from specbench.methods.eagle import Settings
from specbench.methods.eagle3 import check_target
from specbench.training.eagle.fit import Training
from specbench.training.eagle3.train import show
from specbench.training.heads import answered_lessons
from specbench.training.publish import announce, checkpoint_of, publish
from specbench.training.recipe import FeatureRecipe
from specbench.training.train import Job

SHARED = True  # workers may share what it collects; see train.py
PRESETS = ("eagle", "hass", "fspad", "dovetail")


def train(job: Job) -> None:
    """Answer the job's documents, fit, write the head to `job.out` and print how often it agrees on held-out ones.

    Raises UserError as `answered_lessons` does, and if the method's setting `recipe` names another paper.
    """
    assert job.recipe and isinstance(job.settings, Settings)
    if job.settings.recipe != job.preset:
        raise UserError(f"--preset {job.preset} trains no head of {job.spec.name}; name the method {job.preset}")
    recipe = validated(FeatureRecipe, job.recipe.values, job.recipe.name)
    target = check_target(job.pair, job.preset)
    lessons = answered_lessons(job, recipe)
    _, folder, learned, held, facts = lessons
    training = Training(target, learned, job.pair.vocabulary, recipe, job.plan.seed)
    untrained = training.agreement(held)
    with progress(f"training {job.out.stem}", training.steps) as advance:
        training.run(checkpoint_of(job.out), facts, advance)
    figures = training.agreement(held)
    trained = {
        **lessons.described(job),
        "held_out_agreement": [round(value, 4) for value in figures if not math.isnan(value)],
        "held_out_agreement_untrained": [round(value, 4) for value in untrained if not math.isnan(value)],
        "config": stored_settings(training.head.config),
    }
    publish(job.out, job.preset, training.head.state_dict(), job.pair, trained)
    numbers = training.head.num_parameters()
    note(f"{len(learned)} answers, {trained['places']} places to draft from; {numbers:,} numbers")
    show(held, figures, False)
    announce(job.out, f"answers: {folder}", job.use(job.out))
