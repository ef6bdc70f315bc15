"""Train a block drafter (DFlash, arXiv 2602.06036): the target answers documents, and the head learns to go on.

The target is frozen; its hidden states are computed on the fly, as are its distributions. The trainer of `dflare`
(arXiv 2606.02091) is the same; its head mixes the target's layers.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor

from specbench.base.console import console, say
from specbench.config import UserError
from specbench.engine.models.block_head import BlockHead
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.heads import read_head
from specbench.methods.heads.eagle3 import check_target
from specbench.training.answered import Answered
from specbench.training.heads import Lessons
from specbench.training.template import Figures, HeadTrainer, rounded, share_table
from specbench.training.train import Job
from specbench_extras.dflash.fit import SlotTraining
from specbench_extras.dflash.recipe import BlockRecipe, SlotRecipe

Recipe = TypeVar("Recipe", bound=SlotRecipe)

GOES_ON = True  # --warm-up: the weights begin as those of a head of the same sizes; see train.py
SHARED = True  # workers may share what it collects; see train.py


class SlotTrainer(HeadTrainer[Recipe, SlotTraining], Generic[Recipe]):
    """A trainer of block drafters."""

    fit: type[SlotTraining] = SlotTraining

    def load(self) -> None:
        self.target = check_target(self.pair, self.kind)

    def begin(self, lessons: Lessons) -> SlotTraining:
        vocabulary = self.pair.vocabulary
        training = self.fit(self.target, lessons.learned, vocabulary, self.recipe, self.seed, self.kind)
        if self.job.warm_up:
            lessons.facts["warm_up"] = begin_with(self.job.warm_up, training.head, self.job)
        return training

    def described(self, lessons: Lessons, after: Figures, before: Figures) -> dict[str, Any]:
        (*slots, in_a_row), head = after, self.training.head
        return {
            "held_out_agreement": rounded(slots),
            "held_out_in_a_row": None if math.isnan(in_a_row) else round(in_a_row, 4),
            "config": stored_settings(head.config),
            "layers": list(head.layers_read),
            "block": head.block,
        }

    def about(self) -> str:
        read = list(self.training.head.layers_read)
        return super().about() + (f"; it reads the target's layers {read}" if read else "")

    def show(self, held: Sequence[Answered], after: Figures, before: Figures) -> None:
        *slots, in_a_row = after
        show_slots(held, {"": slots}, in_a_row, "slots")


class BlockTrainer(SlotTrainer[BlockRecipe]):
    """The trainer of DFlash and DFlare."""

    recipe_type = BlockRecipe


def train(job: Job) -> None:
    """As `HeadTrainer.train`."""
    BlockTrainer(job).train()


def begin_with(path: Path, head: BlockHead, job: Job) -> str:
    """Give a head the weights of an earlier one, in place, and return their hash.

    Raises UserError for a file that is no head of the kind and the pair, and for one of other sizes.
    """
    kind = job.spec.method
    earlier = read_head(path, kind, job.pair, None)
    sizes = {"layers": earlier.trained.get("layers"), "block": earlier.trained.get("block")}
    if sizes != {"layers": list(head.layers_read), "block": head.block} or shapes(earlier.tensors) != shapes(
        head.state_dict()
    ):
        raise UserError(
            f"{path} is a head of other sizes than the recipe's; give its layers, features and block by --recipe"
        )
    head.load_state_dict(dict(earlier.tensors))
    return earlier.hashes()["head"]


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def show_slots(held: Sequence[Answered], slots: Mapping[str, Sequence[float]], in_a_row: float, whole: str) -> None:
    """Print how often each slot's choice is the target's, on documents that the head has not learned from.

    `slots` has blocks by name; `whole` is what may be right in a row, in words.
    """
    say(f"held out: {len(held)} answers; how often a slot's choice is the target's, given the right tokens before it")
    console.print(share_table("slot", slots))
    if not math.isnan(in_a_row):
        count = len(next(iter(slots.values())))
        say(f"right in a row, of {count} {whole}: {in_a_row:.2f} on the mean")
