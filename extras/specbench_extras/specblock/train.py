"""Train SpecBlock's drafter (arXiv 2605.07243): the target answers documents, and the head learns to go on.

The target is frozen; its hidden states are computed on the fly, as are its distributions.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.base.console import say
from specbench.config import UserError
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.heads import find_head
from specbench.methods.heads.eagle3 import check_target
from specbench.training.answered import Answered
from specbench.training.eagle3.fit import draft_ids
from specbench.training.heads import Lessons, to_learn
from specbench.training.template import Figures, HeadTrainer, rounded
from specbench.training.train import Job
from specbench_extras.dflash.train import show_slots
from specbench_extras.specblock.fit import RankBlockTraining, new_head
from specbench_extras.specblock.rank_block_head import RankBlockHead
from specbench_extras.specblock.recipe import RankBlockRecipe
from specbench_extras.specblock.specblock import KIND, rank_block_head

GOES_ON = True  # --warm-up: a head that the training goes on with; see train.py
SHARED = True  # workers may share what it collects; see train.py


class RankBlockTrainer(HeadTrainer[RankBlockRecipe, RankBlockTraining]):
    """The trainer of SpecBlock's drafter. A head to go on with brings its layers and its draft vocabulary."""

    recipe_type = RankBlockRecipe

    def load(self) -> None:
        self.target = check_target(self.pair, KIND)

    def begin(self, lessons: Lessons) -> RankBlockTraining:
        if self.job.warm_up:
            head, lessons.facts["warm_up"] = earlier_head(self.job, self.recipe)
        else:
            ids = draft_ids(lessons.learned, self.recipe.draft_vocabulary, self.pair.vocabulary)
            head = new_head(self.target, ids, self.recipe, self.seed)
        return RankBlockTraining(self.target, head, lessons.learned, self.pair.vocabulary, self.recipe, self.seed)

    def tensors(self) -> dict[str, Tensor]:
        kept = self.training.head.ids.cpu()
        return {**self.training.head.state_dict(), "d2t": kept - torch.arange(len(kept))}

    def described(self, lessons: Lessons, after: Figures, before: Figures) -> dict[str, Any]:
        first, second, in_a_row, classed = after
        return {
            "held_out_agreement": rounded(first),
            "held_out_second_block": rounded(second),
            "held_out_in_a_row": next(iter(rounded([in_a_row])), None),
            "held_out_classes": next(iter(rounded([classed])), None),
            "config": stored_settings(self.training.head.config),
        }

    def about(self) -> str:
        return f"{super().about()}; draft vocabulary of {len(self.training.head.ids)} tokens"

    def show(self, held: Sequence[Answered], after: Figures, before: Figures) -> None:
        first, second, in_a_row, classed = after
        show_slots(held, {"first block": first, "second block": second}, in_a_row, "slots of a first block")
        if not math.isnan(classed):
            say(f"the rank head says the right class in {classed:.1%} of places")


def train(job: Job) -> None:
    """As `HeadTrainer.train`."""
    RankBlockTrainer(job).train()


def earlier_head(job: Job, recipe: RankBlockRecipe) -> tuple[RankBlockHead, str]:
    """The head that a training goes on with, so that it learns, and its hash; its layers and vocabulary are its own.

    Raises UserError if it does not fit the pair's target, and if its blocks are not those of the recipe.
    """
    earlier = find_head(job.begins_with, KIND, job.pair, None)
    head = rank_block_head(earlier, job.pair.models["target"], job.pair.vocabulary)
    if head.slots != recipe.slots:
        raise UserError(f"{job.begins_with} has blocks of {head.slots} slots; say so by --recipe slots={head.slots}")
    weights = {name: tensor for name, tensor in earlier.tensors.items() if name != "d2t"}
    return to_learn(head, weights), earlier.hashes()["head"]
