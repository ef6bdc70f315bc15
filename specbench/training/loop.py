"""The training loop: learn unit by unit, save a checkpoint now and then, go on from it after a stop.

A unit is a batch, an epoch or an update. Everything random must follow from the seed and from how many units are done:
then a training that was killed ends with the very same weights as one that was not.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from specbench.config import UserError
from specbench.training.checkpoint import load_checkpoint, save_checkpoint
from specbench.training.curve import Curve

Advance = Callable[[int], None]
Batch = TypeVar("Batch")
WATCHED = 50  # steps on a GPU between two looks at their losses, for which the host has to wait


def ignore(count: int) -> None:
    """An `Advance` that nobody watches."""


class Training(ABC):
    """Weights that are being trained, and everything that decides how they go on."""

    state_keys: tuple[str, ...]  # what `state` returns
    device = torch.device("cpu")  # where the tensors of a checkpoint are loaded
    checkpoint_seconds = -1.0  # between two checkpoints at least; -1: save one whenever the training is `complete`
    advance: Advance = staticmethod(ignore)  # called with the progress made

    def run(self, checkpoint: Path, facts: Mapping[str, Any], advance: Advance = ignore) -> None:
        """Learn to the end; `advance` is called with the progress made, in the units of the progress bar.

        Goes on from `checkpoint` if it was begun under the same `facts` (JSON-like). Raises UserError if it was begun
        under others, and if the training diverges.
        """
        self.advance = advance
        kept = checkpoint if checkpoint.exists() else None
        if kept:
            self.restore(load_checkpoint(kept, facts, self.state_keys, self.device))
        else:
            self.begin()
        self.ready()
        saved = time.monotonic()
        while not self.done:
            self.learn_unit(kept)
            if self.complete and time.monotonic() - saved > self.checkpoint_seconds:
                self.settle(kept)
                save_checkpoint(checkpoint, facts, self.state())
                kept, saved = checkpoint, time.monotonic()
                self.after_checkpoint()
        self.settle(kept)

    @property
    @abstractmethod
    def done(self) -> bool:
        """True if there is nothing more to learn."""

    @property
    def complete(self) -> bool:
        """True if `state` holds everything; False in the middle of what cannot be resumed."""
        return True

    @abstractmethod
    def learn_unit(self, kept: Path | None) -> None:
        """Learn the next unit, in place; `kept` is the checkpoint of earlier ones, if any. Raises UserError."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Tensors and plain values from which `restore` goes on."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned, in place, and call `advance` with the progress made before."""

    def begin(self) -> None:  # noqa: B027 (most have nothing to do)
        """Called instead of `restore` if there is no checkpoint."""

    def ready(self) -> None:  # noqa: B027
        """Called before the first unit that is learned."""

    def settle(self, kept: Path | None) -> None:  # noqa: B027
        """Called before each checkpoint and at the end. Raises UserError if a unit diverged and was not looked at."""

    def after_checkpoint(self) -> None:  # noqa: B027
        """Called after each checkpoint."""


class Epochs(Training, Generic[Batch]):
    """A training in passes over its data, a batch a step; `step` counts the batches that it has learned from."""

    def __init__(self, items: int, batch: int, epochs: int) -> None:
        self.epoch_steps = math.ceil(items / batch)
        self.steps = epochs * self.epoch_steps  # of the whole training
        self.step = 0
        self._epoch: tuple[int, Sequence[Batch]] = (-1, ())  # the number of the current epoch, and its batches
        self._losses: list[tuple[int, float | Tensor]] = []  # steps whose losses were not looked at
        self.curve: Curve | None = None  # what held-out data say meanwhile

    @abstractmethod
    def batches(self, epoch: int) -> Sequence[Batch]:
        """All data once, in an order that follows from the seed and the number of the epoch, from 0."""

    @abstractmethod
    def learn(self, batch: Batch) -> float | Tensor:
        """Make one step, in place, and return its loss. A GPU's tensor is looked at later: the host need not wait."""

    @property
    def done(self) -> bool:
        return self.step >= self.steps

    def learn_unit(self, kept: Path | None) -> None:
        epoch, index = divmod(self.step, self.epoch_steps)
        if self._epoch[0] != epoch:
            self._epoch = epoch, self.batches(epoch)
        loss = self.learn(self._epoch[1][index])
        self._losses.append((self.step, loss))
        if not (isinstance(loss, Tensor) and loss.is_cuda) or len(self._losses) >= WATCHED:
            self.settle(kept)
        self.step += 1
        self.advance(1)
        if self.curve and self.curve.due(self.step):
            self.settle(kept)
            self.curve.look(self.step)

    def settle(self, kept: Path | None) -> None:
        losses, self._losses = self._losses, []
        for step, loss in losses:
            if not math.isfinite(value := float(loss)):
                raise self.diverged(step, value, kept)

    def diverged(self, step: int, loss: float, kept: Path | None) -> UserError:
        """The error for a step whose loss is not finite."""
        return UserError(f"the loss is {loss} at step {step}; try a smaller learning_rate by --recipe")


def descend(optimizer: torch.optim.Optimizer, clip: float, rate: float | None = None) -> None:
    """Make a step by the gradients, in place, whose norm is at most `clip`; `rate`: at another learning rate."""
    parameters = []
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] if rate is None else rate
        parameters += group["params"]
    torch.nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
    optimizer.zero_grad()


def cosine(step: int, steps: int, rise: float) -> float:
    """The share of the highest learning rate at a step: a linear rise over `rise` steps, then half a cosine to 0."""
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1.0, steps - rise)))


def linear(step: int, steps: int, warmup: float) -> float:
    """The share of the highest learning rate: a linear rise, then a linear fall to 0 (official code)."""
    rising = max(1.0, warmup * steps)
    return min((step + 1) / rising, (steps - step) / max(1.0, steps - rising), 1.0)
