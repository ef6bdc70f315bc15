"""Train EAGLE-3's head by its trees: `specbench train --method eagle3 --preset gto`.

The head is an earlier one: that of --warm-up, or the one that ships with the pair.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from specbench.base.console import say
from specbench.methods.heads.eagle3 import KIND
from specbench.training.answered import Answered
from specbench.training.eagle3.head_file import describe, earlier_head, tensors_of
from specbench.training.heads import Lessons
from specbench.training.template import Figures, HeadTrainer, rounded
from specbench.training.train import Job
from specbench_extras.gto.fit import GroupTraining
from specbench_extras.gto.recipe import GroupRecipe

PRESET = "gto"
DECODES = True  # the target verifies trees; see train.py
SHARED = True  # workers may share the answers that it collects


class GroupTrainer(HeadTrainer[GroupRecipe, GroupTraining]):
    """The trainer of an EAGLE-3 head that goes on learning."""

    recipe_type = GroupRecipe
    kind = KIND

    def load(self) -> None:
        self.head, self.begun = earlier_head(self.job)

    def begin(self, lessons: Lessons) -> GroupTraining:
        lessons.facts.update(preset=PRESET, warm_up=self.begun)
        return GroupTraining(self.pair, self.head, lessons.learned, self.recipe, self.seed)

    def tensors(self) -> dict[str, Tensor]:
        return tensors_of(self.head)

    def described(self, lessons: Lessons, after: Figures, before: Figures) -> dict[str, Any]:
        self.rewards = self.training.tree_rewards(lessons.held)[::-1]  # as it began, and after the training
        return {
            "held_out_agreement": rounded(after),
            "held_out_reward": [None if math.isnan(value) else round(value, 4) for value in self.rewards],
            **describe(self.head, self.pair.models["target"]),
        }

    def about(self) -> str:
        return f"{self.recipe.groups} groups of {self.recipe.group} trees of each in a pass"

    def show(self, held: Sequence[Answered], after: Figures, before: Figures) -> None:
        begun, learned = self.rewards
        say(f"held out: {len(held)} answers; mean reward of a tree {begun:.3f} → {learned:.3f}")


def train(job: Job) -> None:
    """As `HeadTrainer.train`; goes on with a head. Raises UserError if it does not fit, too."""
    GroupTrainer(job).train()
