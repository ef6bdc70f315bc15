"""Train adapters at several exits of the target, as DEL's exits (arXiv 2504.05598): each learns as Kangaroo's does.

DEL takes targets that were trained to exit early (LayerSkip). Adapters leave the target as it is.
"""

from collections.abc import Sequence
from typing import Any

from specbench.base.console import console, say
from specbench.engine.models.eagle_head import stored_settings
from specbench.training.answered import Answered
from specbench.training.heads import Lessons
from specbench.training.publish import flush_right
from specbench.training.template import Figures, places, rounded
from specbench.training.train import Job
from specbench_extras.del_.recipe import DelRecipe
from specbench_extras.kangaroo.train import ExitTrainer

SHARED = True  # workers may share what it collects; see train.py


class DelTrainer(ExitTrainer[DelRecipe]):
    recipe_type = DelRecipe

    @property
    def exits(self) -> list[int]:
        """How many layers come before each adapter."""
        return [int(before) for before in self.training.head]

    def described(self, lessons: Lessons, after: Figures, before: Figures) -> dict[str, Any]:
        return {
            "exits": self.exits,
            "held_out_agreement": rounded(after),
            "held_out_agreement_untrained": rounded(before),
            "config": stored_settings(self.adapter.config),
        }

    def show(self, held: Sequence[Answered], after: Figures, before: Figures) -> None:
        table = flush_right("layers", "agrees", "untrained")
        for layers, agreement, start in zip(self.exits, after, before, strict=True):
            table.add_row(str(layers), f"{agreement:.1%}", f"{start:.1%}")
        say(places(held))
        console.print(table)


def train(job: Job) -> None:
    """As `HeadTrainer.train`."""
    DelTrainer(job).train()
