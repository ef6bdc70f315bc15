"""Warm up the arbitrator of CoSpec: cross-entropy with soft labels, on mismatches only (appendix C.1, Eq. 29)."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from specbench.base.hashes import stable_seed
from specbench.config import UserError
from specbench.methods.collaborative.cospec_arbitrator import detached, load_own, new_arbitrator, own_parameters
from specbench.training.answered import grouped
from specbench.training.loop import Advance, Epochs, cosine, descend, ignore
from specbench_extras.cospec.reading import all_logits, logits_of, parts
from specbench_extras.cospec.recipe import Sft
from specbench_extras.cospec.traces import Lesson


class WarmUp(Epochs[Sequence[Lesson]]):
    """The warm-up of an arbitrator; a batch is some traced texts."""

    state_keys = ("own", "optimizer", "step")
    checkpoint_seconds = 60.0

    def __init__(
        self, backbone: PreTrainedModel, lessons: Sequence[Lesson], recipe: Sft, hybrid: bool, seed: int
    ) -> None:
        super().__init__(len(lessons), recipe.batch, recipe.epochs)
        self.arbitrator = new_arbitrator(backbone, recipe, stable_seed(seed, "arbitrator"), float(recipe.dropout))
        self.lessons, self.recipe, self.hybrid, self.seed = lessons, recipe, hybrid, seed
        self.parameters = own_parameters(self.arbitrator)
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )

    def run(self, checkpoint: Path, facts: Mapping[str, Any], advance: Advance = ignore) -> None:
        """As `Training.run`; also raises UserError for weights that are not finite at the end."""
        super().run(checkpoint, facts, advance)
        if not all(bool(parameter.isfinite().all()) for parameter in self.parameters.values()):
            raise UserError("a weight is not a number at the end; try a smaller learning_rate by --recipe")

    def batches(self, epoch: int) -> list[Sequence[Lesson]]:
        rng = random.Random(stable_seed(self.seed, "epoch", epoch))
        return list(grouped(rng.sample(self.lessons, len(self.lessons)), self.recipe.batch))

    def learn(self, batch: Sequence[Lesson]) -> float:
        """Make one step, in place; returns its loss, the mean over mismatches (Eq. 29)."""
        readings = [lesson.reading for lesson in batch]
        count, total = sum(reading.logit_count for reading in readings), 0.0
        self.arbitrator.train()
        for part in parts(readings):
            labels = torch.tensor([y for i in part for y in batch[i].labels], device=self.arbitrator.device)
            with torch.random.fork_rng(devices=[]):  # dropout must not depend on what was drawn before
                torch.manual_seed(stable_seed(self.seed, "dropout", self.step, *part) % 2**32)
                logits = logits_of(self.arbitrator, [readings[i] for i in part], self.hybrid)
            loss = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum") / count
            loss.backward()
            total += float(loss.detach())
        self.arbitrator.eval()
        rate = self.recipe.learning_rate * schedule(self.step, self.steps, self.recipe.warmup)
        descend(self.optimizer, self.recipe.clip, rate)
        return total

    def state(self) -> dict[str, Any]:
        return {"own": detached(self.parameters), "optimizer": self.optimizer.state_dict(), "step": self.step}

    def restore(self, state: Mapping[str, Any]) -> None:
        load_own(self.arbitrator, state["own"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        self.advance(self.step)


def schedule(step: int, steps: int, warmup: float) -> float:
    """The share of the highest learning rate: a linear rise, then half a cosine down to 0."""
    return cosine(step, steps, max(1.0, warmup * steps))


def predictions(arbitrator: PreTrainedModel, lessons: Sequence[Lesson], hybrid: bool) -> list[tuple[float, float]]:
    """(logit, label) of every mismatch."""
    logits = all_logits(arbitrator, [lesson.reading for lesson in lessons], hybrid)
    return [pair for row, lesson in zip(logits, lessons, strict=True) for pair in zip(row, lesson.labels, strict=True)]
