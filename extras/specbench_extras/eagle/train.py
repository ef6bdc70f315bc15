"""Train a head that goes on with the target's last state, by the recipe of EAGLE, HASS, FSPAD or Dovetail.

The target is frozen and answers the documents itself; its states are computed on the fly.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from transformers import PreTrainedModel

from specbench.base.console import note
from specbench.config import UserError, validated
from specbench.engine.models.eagle_head import stored_settings
from specbench.methods.heads.eagle import Settings
from specbench.methods.heads.eagle3 import check_target
from specbench.training.answered import Answered
from specbench.training.eagle3.train import show
from specbench.training.heads import answered_lessons, learn_answers
from specbench.training.publish import announce, publish
from specbench.training.train import Job
from specbench_extras.eagle.fit import FeatureTraining, StateTraining
from specbench_extras.eagle.recipe import FeatureRecipe, StateRecipe

SHARED = True  # workers may share what it collects; see train.py
PRESETS = ("eagle", "hass", "fspad", "dovetail")

R = TypeVar("R", bound=StateRecipe)
# The training of a head by a recipe, on a target's answers; then the size of the vocabulary, and at the end a seed.
Make: TypeAlias = Callable[[PreTrainedModel, Sequence[Answered], int, R, int], StateTraining]


def train(job: Job) -> None:
    """Train the head of the job's preset, as `fit_and_publish` does.

    Raises UserError as that does, and if the method's setting `recipe` names another paper.
    """
    assert job.recipe and isinstance(job.settings, Settings)
    if job.settings.recipe != job.preset:
        raise UserError(f"--preset {job.preset} trains no head of {job.spec.name}; name the method {job.preset}")
    fit_and_publish(job, job.preset, validated(FeatureRecipe, job.recipe.values, job.recipe.name), FeatureTraining)


def fit_and_publish(job: Job, kind: str, recipe: R, make: Make[R]) -> None:
    """Answer the job's documents, fit, write the head to `job.out` and print how often it agrees on held-out ones.

    Raises UserError as `answered_lessons` does, and for a target that such a head cannot read.
    """
    target = check_target(job.pair, kind)
    lessons = answered_lessons(job, recipe)
    _, folder, learned, held, facts = lessons
    training = make(target, learned, job.pair.vocabulary, recipe, job.plan.seed)
    untrained = training.agreement(held)
    curve = learn_answers(job, training, lessons, facts, lambda held: training.agreement(held)[0])
    figures = training.agreement(held)
    trained = {
        **lessons.described(job),
        **curve,
        "held_out_agreement": [round(value, 4) for value in figures if not math.isnan(value)],
        "held_out_agreement_untrained": [round(value, 4) for value in untrained if not math.isnan(value)],
        "config": stored_settings(training.head.config),
    }
    publish(job.out, kind, training.head.state_dict(), job.pair, trained)
    numbers = training.head.num_parameters()
    note(f"{len(learned)} answers, {trained['places']} places to draft from; {numbers:,} numbers")
    show(held, figures, False)
    announce(job.out, f"answers: {folder}", job.use(job.out))
