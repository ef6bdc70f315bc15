"""What the trainers of heads share that learn from the target's own answers: the data of a job, and the weights."""

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.base.console import duration, note, progress, say
from specbench.base.hashes import stable_seed
from specbench.config import UserError
from specbench.engine.clock import now
from specbench.engine.types import Sampling
from specbench.measure.manifest import digest
from specbench.training.answered import Answered, answer_all, batches, micro_tokens, most_tokens
from specbench.training.curve import Curve
from specbench.training.documents import Document, hold_out, training_documents
from specbench.training.loop import Batch, Epochs, descend, ignore
from specbench.training.publish import collecting, source
from specbench.training.recipe import AnsweredRecipe, Autocast, LearnedRecipe
from specbench.training.train import Job, checkpoint_of

Learner = TypeVar("Learner", bound=nn.Module)
HELD_OUT, LEAST_HELD = 40, 8  # one document in so many is kept for the figures, but not one alone
FORECAST = 16  # steps; a shorter training is over before its time is known


class Lessons(NamedTuple):
    """A job's documents with the target's answers."""

    documents: Sequence[Document]
    folder: Path  # of the answers
    learned: list[Answered]
    held: list[Answered]
    facts: dict[str, Any]  # all that the weights depend on

    def described(self, job: Job) -> dict[str, Any]:
        """What a head's file says of the documents that it has learned from and was measured on."""
        return {
            **self.facts,
            **source(job, self.documents),
            "learned_answers": len(self.learned),
            "places": sum(document.rows for document in self.learned),
            "held_out_answers": len(self.held),
        }


def answered_lessons(job: Job, recipe: AnsweredRecipe) -> Lessons:
    """Have the target answer the job's documents. The answers stay in NAME.answers/ next to NAME.safetensors.

    Raises UserError if there is nothing to learn.
    """
    documents = training_documents(job.plan, job.pair, 0, job.data)
    folder = job.folder("answers")
    tokens = recipe.answers * most_tokens(documents)
    with collecting(folder, "answering, tokens at most", tokens, "the answers") as advance:
        sampling = Sampling(float(recipe.temperature))
        answered = answer_all(job.pair, documents, recipe.answers, sampling, job.plan.seed, folder, advance)
    learned, held = split(answered, recipe.length, job.plan.seed)
    rows = [[document.name, document.prompt, document.tokens] for document in (*learned, *held)]
    facts = {**recipe.model_dump(), "seed": job.plan.seed, "data": digest(rows)}
    return Lessons(documents, folder, learned, held, facts)


def split(answered: Sequence[Answered], length: int, seed: int) -> tuple[list[Answered], list[Answered]]:
    """Answers to learn from and those of held-out documents, cut to `length` tokens, equal ones once.

    Raises UserError if there are too few.
    """
    cut = {
        (document.name, *document.tokens[:length]): Answered(document.name, document.tokens[:length], document.prompt)
        for document in answered
    }
    usable = [document for document in cut.values() if document.rows > 0]
    names = dict.fromkeys(document.name for document in usable)
    if len(names) < 2:
        raise UserError(
            f"{len(names)} documents have answers that are long enough to learn from; take more --documents"
            + (", or a larger length by --recipe" if any(document.prompt + 2 > length for document in answered) else "")
        )
    held = set(hold_out(names, seed, HELD_OUT, LEAST_HELD)[1])
    learned = [document for document in usable if document.name not in held]
    return learned, [document for document in usable if document.name in held]


class HeadTraining(Epochs[Batch]):
    """The training of a head by AdamW, on `items` that come `recipe.batch` at a time."""

    state_keys = ("head", "optimizer", "step")
    checkpoint_seconds = 120.0

    def __init__(
        self,
        target: PreTrainedModel,
        head: nn.Module,
        items: int,
        recipe: LearnedRecipe,
        seed: int,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        super().__init__(items, recipe.batch, recipe.epochs)
        self.target, self.head, self.recipe = target, head, recipe
        self.size, self.seed, self.device = recipe.batch, seed, target.device
        self.micro = micro_tokens(target)
        self.optimizer = torch.optim.AdamW(
            head.parameters(),
            lr=recipe.learning_rate,
            betas=betas,
            weight_decay=recipe.weight_decay,
            fused=True if self.device.type == "cuda" else None,
        )

    def ready(self) -> None:
        """Print how long the training takes, as some of its steps went, which are then undone.

        The second batch is read twice, as what the target says of it may be kept from the first time.
        """
        left = self.steps - self.step
        if self.curve is None or left < FORECAST:
            return
        before, told = copy.deepcopy(self.state()), self.advance
        first, *others = self.batches(0)[:2]
        seconds = [self._seconds(batch) for batch in (first, *others, *others)]
        self.advance = ignore
        self.restore(before)
        self.advance = told
        fresh = min(left, self.epoch_steps)
        total = seconds[len(others)] * fresh + seconds[-1] * (left - fresh)
        say(f"about {duration(total)} for {left} steps of {self.size} answers, as the first ones went")

    def _seconds(self, batch: Batch) -> float:
        """How long a step takes, which changes the weights in place."""
        began = now()
        float(self.learn(batch))
        return now() - began

    def descend(self, share: float) -> None:
        """Make a step by the gradients, in place, at a share of the highest learning rate."""
        descend(self.optimizer, self.recipe.clip, self.recipe.learning_rate * share)

    def state(self) -> dict[str, Any]:
        points, learned = (self.curve.points, self.curve.learned) if self.curve else ({}, {})
        return {
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "curve": dict(points),
            "learned": dict(learned),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        if self.curve:
            self.curve.points, self.curve.learned = (dict(state.get(key, {})) for key in ("curve", "learned"))
        self.advance(self.step)


class AnsweredTraining(HeadTraining[list[Answered]]):
    """The training of a head on documents that the target has answered."""

    def __init__(
        self,
        target: PreTrainedModel,
        head: nn.Module,
        answered: Sequence[Answered],
        recipe: AnsweredRecipe,
        seed: int,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        super().__init__(target, head, len(answered), recipe, seed, betas)
        self.answered = answered

    def batches(self, epoch: int) -> list[list[Answered]]:
        return batches(self.answered, self.size, stable_seed(self.seed, "epoch", epoch))

    @abstractmethod
    def agreement(self, answered: Sequence[Answered]) -> Sequence[Any]:
        """How often the head's choices are the target's on some answers: shares, or several of each."""

    def first_agreement(self, answered: Sequence[Answered]) -> float:
        """The first of these shares."""
        return float(self.agreement(answered)[0])


def learn_answers(job: Job, training: AnsweredTraining, lessons: Lessons) -> dict[str, Any]:
    """Carry out a training, and print what held-out answers say meanwhile, and where it is stopped.

    Returns what a head's file says of it.
    """
    places = sum(document.rows for document in lessons.held)
    known = lessons.learned[:: max(1, len(lessons.learned) // len(lessons.held))][: len(lessons.held)]
    training.curve = curve = Curve(
        training.steps,
        lambda: training.first_agreement(lessons.held),
        places,
        measure_learned=lambda: training.first_agreement(known),
    )
    count = sum(one.rows for one in lessons.learned)
    note(
        f"learning from {len(lessons.learned)} answers with {count} places to draft from; "
        f"held out: {len(lessons.held)} answers with {places}"
    )
    try:
        with progress(f"training {job.out.stem}", training.steps) as advance:
            training.run(checkpoint_of(job.out), lessons.facts, advance)
    except KeyboardInterrupt:
        say(f"stopped after step {training.step} of {training.steps}; the same command goes on")
        curve.tell()
        raise
    curve.tell()
    figures = {"held_out_curve": curve.points, "learned_curve": curve.learned}
    return {name: [[step, round(value, 4)] for step, value in by.items()] for name, by in figures.items()}


def to_learn(head: Learner, tensors: Mapping[str, Tensor]) -> Learner:
    """A head that was read from a file, in place, so that it learns: its tensors in float32, with gradients."""
    head.float().load_state_dict(dict(tensors))
    return head.requires_grad_(True)


def autocast(device: torch.device, wanted: Autocast) -> torch.autocast:
    """Matrix products in bfloat16 if they are wanted; `auto`: on a GPU, which computes them several times as fast."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda" if wanted == "auto" else wanted)


def random_linear(head: nn.Module, rng: torch.Generator) -> None:
    """Draw the weights of all linear layers again, in place, with variance 1 over a layer's inputs."""
    with torch.no_grad():
        for module in head.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=module.in_features**-0.5, generator=rng)
