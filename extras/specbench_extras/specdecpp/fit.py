"""Fit the acceptance head of SpecDec++ (arXiv 2405.19715): weighted cross-entropy, AdamW, a cosine schedule.

Each epoch ends with an evaluation on held-out documents and a checkpoint; the head of the best epoch is kept.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from specbench.base.hashes import stable_seed
from specbench.config import UserError
from specbench.methods.lengths.specdecpp import AcceptanceHead, features
from specbench.training.loop import Advance, Epochs, cosine, descend
from specbench_extras.specdecpp.data import Observed
from specbench_extras.specdecpp.recipe import HeadRecipe
from specbench_extras.specdecpp.soft_labels import binary_kl

CHUNK = 65536  # positions that are evaluated at once
Bounds = tuple[int, int]  # the first position of a document, and the one after its last


@dataclass(frozen=True)
class Examples:
    """Positions of several documents, one document after the other."""

    hidden: Tensor  # [n, H] float16; or [n, H + 1], as the head reads them
    accepted: NDArray[np.float32]  # [n]: p_acc
    confidence: NDArray[np.float32]  # [n]
    documents: NDArray[np.int64]  # [n]: the document of each, from 0
    bounds: list[Bounds]  # of each document

    def reading(self, inputs: str) -> "Examples":
        """These examples with what a head of these `inputs` reads in place of the states [n, H]."""
        if inputs == "state":
            return self
        inputs_read = features(self.hidden, torch.from_numpy(self.confidence)[:, None])
        return replace(self, hidden=inputs_read.half())


@dataclass(frozen=True)
class Epoch:
    epoch: int  # from 1
    learning_rate: float  # of its last step
    loss: float  # mean over its steps, each before it was made
    train_kl: float  # at its end, in nats
    eval_kl: float  # of the held-out documents


@dataclass(frozen=True)
class Fitted:
    """The head of the epoch with the least held-out KL, and all epochs."""

    tensors: dict[str, Tensor]  # as in a head file, on the CPU
    epochs: list[Epoch]

    @property
    def best(self) -> Epoch:
        return best_epoch(self.epochs)


def best_epoch(epochs: Sequence[Epoch]) -> Epoch:
    """The epoch of the least held-out KL, the first of equals."""
    return min(epochs, key=lambda epoch: epoch.eval_kl)


def gather(observed: Sequence[Observed]) -> Examples:
    """Join the documents' positions. Raises UserError if there are none, or a hidden state is not finite."""
    usable = [document for document in observed if len(document.positions)]
    if not usable:
        raise UserError("no document has a draft token to learn from; take more --documents, or a smaller mix")
    hidden = torch.from_numpy(np.concatenate([document.hidden for document in usable]))
    if not hidden.isfinite().all():
        raise UserError("the draft model gives hidden states that are no numbers; try --dtype float32")
    counts = [len(document.positions) for document in usable]
    return Examples(
        hidden,
        np.concatenate([document.accepted for document in usable]),
        np.concatenate([document.confidence for document in usable]),
        np.repeat(np.arange(len(usable)), counts),
        list(pairwise(accumulate(counts, initial=0))),
    )


def fit(
    learned: Examples,
    held: Examples,
    recipe: HeadRecipe,
    seed: int,
    device: torch.device,
    checkpoint: Path,
    facts: Mapping[str, Any],
    advance: Advance,
) -> Fitted:
    """Train a head on `learned`, choose its epoch by `held`; the others, and errors, as of `AcceptanceTraining`."""
    training = AcceptanceTraining(learned, held, recipe, seed, device)
    training.run(checkpoint, facts, advance)
    return Fitted(training.best, training.epochs)


class AcceptanceTraining(Epochs[list[Bounds]]):
    """The training of a head; a batch is some documents, by the bounds of their positions."""

    state_keys = ("epochs", "tensors", "best", "optimizer")

    def __init__(self, learned: Examples, held: Examples, recipe: HeadRecipe, seed: int, device: torch.device) -> None:
        super().__init__(len(learned.bounds), recipe.batch, recipe.epochs)
        self.learned, self.held, self.recipe, self.seed, self.device = learned, held, recipe, seed, device
        tensors = start(recipe, seed, learned.hidden.shape[1])
        self.tensors = {name: tensor.to(device).requires_grad_() for name, tensor in tensors.items()}
        self.optimizer = torch.optim.AdamW(self.tensors.values(), weight_decay=recipe.weight_decay)
        self.losses: list[float] = []  # of the current epoch's steps
        self.epochs: list[Epoch] = []
        self.best: dict[str, Tensor] = {}  # tensors of the best epoch, as in a head file, on the CPU

    @property
    def head(self) -> AcceptanceHead:
        return head_of(self.tensors, self.recipe.depth)

    @property
    def done(self) -> bool:
        """True after the last epoch, and after `patience` epochs without a better held-out KL."""
        since_best = len(self.epochs) - best_epoch(self.epochs).epoch if self.epochs else 0
        return super().done or 0 < self.recipe.patience <= since_best

    @property
    def complete(self) -> bool:
        return self.step % self.epoch_steps == 0

    def rate(self, step: int) -> float:
        """The learning rate of a step of the whole training: a linear rise, then half a cosine down to 0."""
        return self.recipe.learning_rate * cosine(step, self.steps, math.ceil(self.recipe.warmup * self.steps))

    def batches(self, epoch: int) -> list[list[Bounds]]:
        bounds = self.learned.bounds[:]
        random.Random(stable_seed(self.seed, "epoch", epoch)).shuffle(bounds)
        return [bounds[first : first + self.recipe.batch] for first in range(0, len(bounds), self.recipe.batch)]

    def learn(self, batch: list[Bounds]) -> float:
        hidden = torch.cat([self.learned.hidden[a:b] for a, b in batch]).to(self.device).float()
        accepted = torch.from_numpy(np.concatenate([self.learned.accepted[a:b] for a, b in batch])).to(self.device)
        loss = weighted_loss(self.head.log_odds(hidden), accepted, self.recipe.weight)
        self.losses.append(loss.item())
        if math.isfinite(self.losses[-1]):
            loss.backward()
            descend(self.optimizer, self.recipe.clip, self.rate(self.step))
        return self.losses[-1]

    def learn_unit(self, kept: Path | None) -> None:
        """Learn a batch, and evaluate the head if it ends an epoch."""
        super().learn_unit(kept)
        if not self.complete:
            return
        both = self.learned, self.held
        kls = [binary_kl(part.accepted, predicted(self.head, part.hidden, self.device)) for part in both]
        if not all(map(math.isfinite, kls)):
            raise self.diverged(self.step, math.nan, kept)
        self.end(Epoch(len(self.epochs) + 1, self.rate(self.step - 1), sum(self.losses) / len(self.losses), *kls))
        self.losses = []

    def end(self, epoch: Epoch) -> None:
        """Note an epoch's figures, and keep its tensors if it is the best so far."""
        if all(epoch.eval_kl < earlier.eval_kl for earlier in self.epochs):
            self.best = {name: tensor.detach().cpu().clone() for name, tensor in self.tensors.items()}
        self.epochs.append(epoch)

    def diverged(self, step: int, loss: float, kept: Path | None) -> UserError:
        return UserError(
            f"the loss is not a number any more in epoch {len(self.epochs) + 1}; take a lower rate, such as "
            f"--recipe learning_rate={self.recipe.learning_rate / 10:g}, and another --out"
            + (f"; what was learned before is kept in {kept}" if kept else "")
        )

    def state(self) -> dict[str, Any]:
        return {
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "tensors": {name: tensor.detach() for name, tensor in self.tensors.items()},
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(state["tensors"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]
        self.best = {name: tensor.cpu() for name, tensor in state["best"].items()}
        self.step = len(self.epochs) * self.epoch_steps
        self.advance(self.step)


def start(recipe: HeadRecipe, seed: int, width: int) -> dict[str, Tensor]:
    """The initial tensors of a head: uniform within ±1/√H, as linear layers of the official code are."""
    blocks = min(recipe.depth, 1) if recipe.shared_blocks else recipe.depth
    rng, bound = torch.Generator().manual_seed(stable_seed(seed, "start")), width**-0.5
    shapes = {
        "blocks.weight": (blocks, width, width),
        "blocks.bias": (blocks, width),
        "out.weight": (2, width),
        "out.bias": (2,),
    }
    return {name: torch.empty(shape).uniform_(-bound, bound, generator=rng) for name, shape in shapes.items()}


def head_of(tensors: Mapping[str, Tensor], depth: int) -> AcceptanceHead:
    """The head of tensors by their names in a file."""
    blocks, out = ([tensors[f"{layer}.{kind}"] for kind in ("weight", "bias")] for layer in ("blocks", "out"))
    return AcceptanceHead(blocks[0], blocks[1], out[0], out[1], depth)


def weighted_loss(log_odds: Tensor, accepted: Tensor, weight: float) -> Tensor:
    """Σ (−w (1 − p_acc) log π_0 − p_acc log π_1) / (w Σ (1 − p_acc) + Σ p_acc) over n positions (section 4.4)."""
    rejected = weight * (1 - accepted)
    total = -(rejected * logsigmoid(-log_odds) + accepted * logsigmoid(log_odds)).sum()
    return total / (rejected.sum() + accepted.sum())


@torch.no_grad()
def predicted(head: AcceptanceHead, hidden: Tensor, device: torch.device) -> NDArray[np.float32]:
    """The head's log odds [n] for hidden states [n, H]."""
    return np.concatenate([head.log_odds(part.to(device).float()).cpu().numpy() for part in hidden.split(CHUNK)])
