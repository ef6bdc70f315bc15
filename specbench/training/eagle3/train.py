"""Train the draft head of EAGLE-3 (arXiv 2503.01840): the target answers documents, and the head learns to go on.

The target is frozen; its hidden states are computed on the fly. As in the official code, the loss is the cross-entropy
with the target's distribution over the draft vocabulary, at the positions of the answers.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from specbench.base.console import console, say
from specbench.methods.heads.eagle3 import KIND, check_target
from specbench.training.answered import Answered
from specbench.training.eagle3.fit import Eagle3Training, draft_ids, new_head
from specbench.training.eagle3.head_file import describe, earlier_head, tensors_of
from specbench.training.heads import Lessons
from specbench.training.recipe import EagleRecipe
from specbench.training.template import Figures, HeadTrainer, places, rounded, share_table
from specbench.training.train import Job

GOES_ON = True  # --warm-up: a head that the training goes on with; see train.py
SHARED = True  # workers may share what it collects; see train.py


class Eagle3Trainer(HeadTrainer[EagleRecipe, Eagle3Training]):
    """The trainer of EAGLE-3's head. A head to go on with brings its draft vocabulary."""

    recipe_type = EagleRecipe
    kind = KIND

    def load(self) -> None:
        self.target = check_target(self.pair)

    def begin(self, lessons: Lessons) -> Eagle3Training:
        if self.job.warm_up:
            head, lessons.facts["warm_up"] = earlier_head(self.job)
        else:
            ids = draft_ids(lessons.learned, self.recipe.draft_vocabulary, self.pair.vocabulary)
            head = new_head(self.target, ids, self.seed)
        return Eagle3Training(self.target, head, lessons.learned, self.recipe, self.seed)

    def tensors(self) -> dict[str, Tensor]:
        return tensors_of(self.training.head)

    def described(self, lessons: Lessons, after: Figures, before: Figures) -> dict[str, Any]:
        return {"held_out_agreement": rounded(after), **describe(self.training.head, self.target)}

    def about(self) -> str:
        return f"draft vocabulary of {len(self.training.head.ids)} tokens"

    def show(self, held: Sequence[Answered], after: Figures, before: Figures) -> None:
        show(held, after, self.pair.vocabulary > len(self.training.head.ids))


def train(job: Job) -> None:
    """As `HeadTrainer.train`."""
    Eagle3Trainer(job).train()


def show(held: Sequence[Answered], figures: Sequence[float], reduced: bool = False) -> None:
    """Print how often the head's choice is the target's, by draft step, on documents that it has not learned from."""
    say(
        f"{places(held)}; how often the head's choice is the target's, given the right tokens before it"
        + (" (tokens outside the draft vocabulary are misses)" if reduced else "")
    )
    console.print(share_table("step", {"": figures}))
