"""Train DEER's block drafter (arXiv 2512.15176): the trainer of DFlash, for a head that reads the text alone.

Two stages: the head first learns to go on after a random place of an answer, all slots alike; then the first slots
weigh more. The paper marks the place with a token of its own. Here a block begins with the last committed token.
"""

import math

from specbench.training.train import Job
from specbench_extras.deer.recipe import TextBlockRecipe
from specbench_extras.dflash.fit import SlotTraining
from specbench_extras.dflash.train import GOES_ON, SHARED, SlotTrainer

__all__ = ["GOES_ON", "SHARED", "train"]


class TwoStages(SlotTraining):
    """The training of a block drafter whose slots weigh the same in the first steps."""

    recipe: TextBlockRecipe

    def decay(self) -> float:
        return math.inf if self.step < self.recipe.continued * self.steps else self.recipe.decay


class DeerTrainer(SlotTrainer[TextBlockRecipe]):
    recipe_type = TextBlockRecipe
    fit = TwoStages


def train(job: Job) -> None:
    """As `HeadTrainer.train`."""
    DeerTrainer(job).train()
