"""Warm up the arbitrator of CoSpec: cross-entropy with soft labels, on mismatches only (appendix C.1, Eq. 29)."""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from specbench.arbitrator import detached, load_own, new_arbitrator, own_parameters
from specbench.config import UserError
from specbench.seeds import stable_seed
from specbench.train.checkpoint import load_checkpoint, save_checkpoint
from specbench.train.cospec_reading import all_logits, logits_of, parts
from specbench.train.cospec_recipe import Sft
from specbench.train.cospec_traces import Lesson
from specbench.train.eagle3_data import grouped

CHECKPOINT_SECONDS = 60


class WarmUp:
    """An arbitrator on its way: `step` counts the batches that it has learned from."""

    def __init__(
        self, backbone: PreTrainedModel, lessons: Sequence[Lesson], recipe: Sft, hybrid: bool, seed: int
    ) -> None:
        self.arbitrator = new_arbitrator(backbone, recipe, stable_seed(seed, "arbitrator"), float(recipe.dropout))
        self.lessons, self.recipe, self.hybrid, self.seed = lessons, recipe, hybrid, seed
        self.parameters = own_parameters(self.arbitrator)
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self.an_epoch = math.ceil(len(lessons) / recipe.batch)
        self.steps = recipe.epochs * self.an_epoch
        self.step = 0

    def run(self, checkpoint: Path, facts: Mapping[str, Any], advance: Callable[[int], None]) -> None:
        """Learn until all epochs are done; `advance` is called with the number of steps done.

        Goes on from `checkpoint` if it was begun under the same `facts` (JSON-like). Raises UserError for another one,
        and where the loss is no number any more.
        """
        if checkpoint.exists():
            state = load_checkpoint(checkpoint, facts, ("own", "optimizer", "step"))
            load_own(self.arbitrator, state["own"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]
            advance(self.step)
        saved = time.monotonic()
        while self.step < self.steps:
            epoch, done = divmod(self.step, self.an_epoch)
            rng = random.Random(stable_seed(self.seed, "epoch", epoch))
            batches = list(grouped(rng.sample(self.lessons, len(self.lessons)), self.recipe.batch))
            for batch in batches[done:]:
                if not math.isfinite(loss := self.learn(batch)):
                    raise UserError(f"the loss is {loss} at step {self.step}; try a smaller learning_rate by --recipe")
                self.step += 1
                advance(1)
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    state = {
                        "own": detached(self.parameters),
                        "optimizer": self.optimizer.state_dict(),
                        "step": self.step,
                    }
                    save_checkpoint(checkpoint, facts, state)
                    saved = time.monotonic()
        if not all(bool(one.isfinite().all()) for one in self.parameters.values()):
            raise UserError("a weight is no number at the end; try a smaller learning_rate by --recipe")

    def learn(self, batch: Sequence[Lesson]) -> float:
        """One step, in place; returns its loss, the mean over mismatches (Eq. 29)."""
        rate = self.recipe.learning_rate * schedule(self.step, self.steps, self.recipe.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        readings = [one.reading for one in batch]
        count, total = sum(one.asked for one in readings), 0.0
        self.arbitrator.train()
        for some in parts(readings):
            labels = torch.tensor([y for i in some for y in batch[i].labels], device=self.arbitrator.device)
            with torch.random.fork_rng(devices=[]):  # for dropout, whatever was drawn before
                torch.manual_seed(stable_seed(self.seed, "dropout", self.step, *some) % 2**32)
                logits = logits_of(self.arbitrator, [readings[i] for i in some], self.hybrid)
            loss = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum") / count
            loss.backward()
            total += float(loss.detach())
        self.arbitrator.eval()
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total


def schedule(step: int, steps: int, warmup: float) -> float:
    """The share of the highest learning rate: a linear rise, then half a cosine down to 0."""
    rising = max(1.0, warmup * steps)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1.0, steps - rising)))


def predictions(arbitrator: PreTrainedModel, lessons: Sequence[Lesson], hybrid: bool) -> list[tuple[float, float]]:
    """(logit, label) of every mismatch."""
    found = all_logits(arbitrator, [one.reading for one in lessons], hybrid)
    return [pair for own, one in zip(found, lessons, strict=True) for pair in zip(own, one.labels, strict=True)]
