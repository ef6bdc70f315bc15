"""Train Chimera's head (arXiv 2402.15758) on the target's own answers.

The target is frozen; its states are computed on the fly.
"""

from specbench.training.heads import Lessons
from specbench.training.train import Job
from specbench_extras.chimera.fit import ChimeraTraining
from specbench_extras.eagle.recipe import StateRecipe
from specbench_extras.eagle.train import StateTrainer

SHARED = True  # workers may share what it collects; see train.py


class ChimeraTrainer(StateTrainer[StateRecipe, ChimeraTraining]):
    recipe_type = StateRecipe

    def begin(self, lessons: Lessons) -> ChimeraTraining:
        return ChimeraTraining(self.target, lessons.learned, self.pair.vocabulary, self.recipe, self.seed)


def train(job: Job) -> None:
    """As `HeadTrainer.train`."""
    ChimeraTrainer(job).train()
