"""Train Chimera's head (arXiv 2402.15758) on the target's own answers.

The target is frozen; its states are computed on the fly.
"""

from specbench.config import validated
from specbench.training.train import Job
from specbench_extras.chimera.chimera import KIND
from specbench_extras.chimera.fit import ChimeraTraining
from specbench_extras.eagle.recipe import StateRecipe
from specbench_extras.eagle.train import fit_and_publish

SHARED = True  # workers may share what it collects; see train.py


def train(job: Job) -> None:
    """As `fit_and_publish` of EAGLE's heads."""
    assert job.recipe
    fit_and_publish(job, KIND, validated(StateRecipe, job.recipe.values, job.recipe.name), ChimeraTraining)
