"""Train Medusa's heads (arXiv 2401.10774, Medusa-1: the target stays as it is)."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from specbench.base.console import console, say
from specbench.engine.models.draft_heads import MedusaHeads
from specbench.engine.models.heads import hidden_size
from specbench.training.answered import Answered
from specbench.training.heads import Lessons
from specbench.training.publish import flush_right
from specbench.training.template import Figures, HeadTrainer, places
from specbench.training.train import Job
from specbench_extras.medusa.fit import DraftHeadsTraining, Make
from specbench_extras.medusa.recipe import DraftHeadsRecipe

SHARED = True  # workers may share what it collects; see train.py


class DraftHeadsTrainer(HeadTrainer[DraftHeadsRecipe, DraftHeadsTraining]):
    """The trainer of Medusa's and Hydra's heads, which `make` makes."""

    recipe_type = DraftHeadsRecipe
    compared = True

    def __init__(self, job: Job, make: Make) -> None:
        super().__init__(job)
        self.make = make

    def begin(self, lessons: Lessons) -> DraftHeadsTraining:
        target = self.pair.models["target"]
        return DraftHeadsTraining(self.make, target, lessons.learned, self.pair.vocabulary, self.recipe, self.seed)

    def described(self, lessons: Lessons, after: Figures, before: Figures) -> dict[str, Any]:
        return {
            "accuracies": [[round(share, 4) for share in row] for row in after],
            "accuracies_untrained": [[round(share, 4) for share in row] for row in before],
        }

    def show(self, held: Sequence[Answered], after: Figures, before: Figures) -> None:
        say(f"{places(held)}; how often the target's choice is a head's, given the right tokens before it")
        table = flush_right("head", "first", f"among {len(after[0])}", "first, untrained")
        for number, (row, start) in enumerate(zip(after, before, strict=True), 1):
            table.add_row(str(number), f"{row[0]:.1%}", f"{sum(row):.1%}", f"{start[0]:.1%}")
        console.print(table)


def new_heads(target: PreTrainedModel, recipe: DraftHeadsRecipe) -> MedusaHeads:
    """Heads in torch's first weights."""
    own = recipe.output == "own"
    return MedusaHeads(recipe.heads, recipe.layers, hidden_size(target), own, target.get_output_embeddings())


def train(job: Job) -> None:
    """As `HeadTrainer.train`."""
    DraftHeadsTrainer(job, new_heads).train()
