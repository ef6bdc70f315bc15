"""Train a head that goes on with the target's last state, by the recipe of EAGLE, HASS, FSPAD or Dovetail.

The target is frozen and answers the documents itself; its states are computed on the fly.
"""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from specbench.config import UserError
from specbench.engine.models.eagle_head import stored_settings
from specbench.methods.heads.eagle import Settings
from specbench.methods.heads.eagle3 import check_target
from specbench.training.answered import Answered
from specbench.training.eagle3.train import show
from specbench.training.heads import Lessons
from specbench.training.template import Figures, HeadTrainer, rounded
from specbench.training.train import Job
from specbench_extras.eagle.fit import FeatureTraining, StateTraining
from specbench_extras.eagle.recipe import FeatureRecipe, StateRecipe

SHARED = True  # workers may share what it collects; see train.py
PRESETS = ("eagle", "hass", "fspad", "dovetail")

Recipe = TypeVar("Recipe", bound=StateRecipe)
Fit = TypeVar("Fit", bound=StateTraining)


class StateTrainer(HeadTrainer[Recipe, Fit], Generic[Recipe, Fit]):
    """A trainer of a head that goes on with the target's last state."""

    compared = True

    def load(self) -> None:
        self.target = check_target(self.pair, self.kind)

    def described(self, lessons: Lessons, after: Figures, before: Figures) -> dict[str, Any]:
        return {
            "held_out_agreement": rounded(after),
            "held_out_agreement_untrained": rounded(before),
            "config": stored_settings(self.training.head.config),
        }

    def show(self, held: Sequence[Answered], after: Figures, before: Figures) -> None:
        show(held, after)


class FeatureTrainer(StateTrainer[FeatureRecipe, FeatureTraining]):
    """The trainer of the head of the job's preset."""

    recipe_type = FeatureRecipe

    @property
    def kind(self) -> str:
        return self.job.preset

    def load(self) -> None:
        settings, preset = self.job.settings, self.job.preset
        assert isinstance(settings, Settings)
        if settings.recipe != preset:
            raise UserError(f"--preset {preset} trains no head of {self.job.spec.name}; name the method {preset}")
        super().load()

    def begin(self, lessons: Lessons) -> FeatureTraining:
        return FeatureTraining(self.target, lessons.learned, self.pair.vocabulary, self.recipe, self.seed)


def train(job: Job) -> None:
    """As `HeadTrainer.train`. Raises UserError, too, if the method's setting `recipe` names another paper."""
    FeatureTrainer(job).train()
