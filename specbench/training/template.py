"""The template of trainers whose heads learn from the target's own answers: load, answers, fit, publish, show.

A trainer derives from `HeadTrainer`, adds what its paper says, and has `train(job)` call `MyTrainer(job).train()`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from rich.table import Table
from torch import Tensor

from specbench.base.console import note
from specbench.training.answered import Answered
from specbench.training.heads import AnsweredTraining, Lessons, answered_lessons, learn_answers
from specbench.training.publish import announce, flush_right, publish
from specbench.training.recipe import AnsweredRecipe
from specbench.training.train import Job

Recipe = TypeVar("Recipe", bound=AnsweredRecipe)
Fit = TypeVar("Fit", bound=AnsweredTraining)
Figures = Sequence[Any]  # as `AnsweredTraining.agreement` returns them


class HeadTrainer(ABC, Generic[Recipe, Fit]):
    """A trainer of heads, for one job."""

    recipe_type: type[Recipe]
    compared = False  # True: the head is measured before its training, too
    training: Fit  # from `begin` on

    def __init__(self, job: Job) -> None:
        self.job, self.pair, self.seed = job, job.pair, job.plan.seed
        self.recipe = job.recipe_as(self.recipe_type)

    @property
    def kind(self) -> str:
        """The kind of the head's file; by default the method's name."""
        return self.job.method

    def train(self) -> None:
        """Answer the job's documents, fit, write the head to `job.out` and print how often it agrees on held-out ones.

        Raises UserError as `load`, `answered_lessons` and `begin` do.
        """
        job = self.job
        self.load()
        lessons = answered_lessons(job, self.recipe)
        self.training = self.begin(lessons)
        before = self.training.agreement(lessons.held) if self.compared else ()
        curve = learn_answers(job, self.training, lessons)
        after = self.training.agreement(lessons.held)
        trained = {**lessons.described(job), **curve, **self.described(lessons, after, before)}
        publish(job.out, self.kind, self.tensors(), job.pair, trained)
        about = self.about()
        note(f"{len(lessons.learned)} answers, {trained['places']} places to draft from" + (about and f"; {about}"))
        self.show(lessons.held, after, before)
        announce(job.out, f"answers: {lessons.folder}", job.use(job.out))

    def load(self) -> None:
        """Load an earlier head, and raise UserError for a pair that does not fit, before minutes of answers."""

    @abstractmethod
    def begin(self, lessons: Lessons) -> Fit:
        """The training before its first step; adds to `lessons.facts`, in place, what else the weights depend on."""

    def tensors(self) -> Mapping[str, Tensor]:
        """What the head's file holds after the training."""
        tensors: Mapping[str, Tensor] = self.training.head.state_dict()
        return tensors

    @abstractmethod
    def described(self, lessons: Lessons, after: Figures, before: Figures) -> dict[str, Any]:
        """What the head's file says of the head, JSON-like; `before` is empty unless `compared`."""

    def about(self) -> str:
        """The head in a few words; by default its size."""
        return f"{sum(parameter.numel() for parameter in self.training.head.parameters()):,} numbers"

    @abstractmethod
    def show(self, held: Sequence[Answered], after: Figures, before: Figures) -> None:
        """Print the figures of documents that the head has not learned from."""


def rounded(shares: Sequence[float]) -> list[float]:
    """Shares as a head's file has them, without those of which there are no places."""
    return [round(share, 4) for share in shares if not math.isnan(share)]


def share_table(unit: str, rows: Mapping[str, Sequence[float]]) -> Table:
    """Shares by number of a unit ("step"), in rows by name; a name may be empty."""
    longest = max(map(len, rows.values()))
    named = [""] if any(rows) else []
    table = flush_right(*named, *(f"{unit} {number}" for number in range(1, longest + 1)))
    for name, shares in rows.items():
        table.add_row(*[name][: len(named)], *("-" if math.isnan(share) else f"{share:.1%}" for share in shares))
    return table


def places(held: Sequence[Answered]) -> str:
    """How much is held out, in words."""
    return f"held out: {len(held)} answers, {sum(document.rows for document in held)} places"
