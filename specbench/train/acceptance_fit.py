"""Fit the acceptance head of SpecDec++ (arXiv 2405.19715): weighted cross-entropy, AdamW, a cosine schedule.

Each epoch ends with a checkpoint, and nothing is drawn but from the seed and the epoch's number: a training that was
killed goes on from there and ends with the very same head.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from specbench.config import UserError
from specbench.decoding.acceptance import AcceptanceHead, features
from specbench.seeds import stable_seed
from specbench.train.acceptance import Observed
from specbench.train.checkpoint import load_checkpoint, save_checkpoint
from specbench.train.recipe import Recipe
from specbench.train.soft_labels import binary_kl

CHUNK = 65536  # positions that are evaluated at once


@dataclass(frozen=True)
class Examples:
    """Positions of several documents, one document behind the other."""

    hidden: Tensor  # [n, H] float16; or [n, H + 1], as the head reads them
    accepted: NDArray[np.float32]  # [n]: p_acc
    confidence: NDArray[np.float32]  # [n]
    documents: NDArray[np.int64]  # [n]: which one each is of, from 0
    bounds: list[tuple[int, int]]  # of each document

    def reading(self, inputs: str) -> "Examples":
        """The same with what a head of these `inputs` reads in place of the states [n, H]."""
        if inputs == "state":
            return self
        read = features(self.hidden, torch.from_numpy(self.confidence)[:, None])
        return replace(self, hidden=read.half())


@dataclass(frozen=True)
class Epoch:
    epoch: int  # from 1
    learning_rate: float  # of its last step
    loss: float  # mean over its steps, as they were met
    train_kl: float  # at its end, in nats
    eval_kl: float  # of the held-out documents


@dataclass(frozen=True)
class Fitted:
    """The head of the epoch with the least held-out KL, and all epochs."""

    tensors: dict[str, Tensor]  # as in a head file, on the CPU
    epochs: list[Epoch]

    @property
    def best(self) -> Epoch:
        return min(self.epochs, key=lambda epoch: epoch.eval_kl)


def gather(observed: Sequence[Observed]) -> Examples:
    """Raises UserError if no document has a position, or a hidden state is no number."""
    some = [one for one in observed if len(one.positions)]
    if not some:
        raise UserError("no document has a draft token to learn from; take more --documents, or a smaller mix")
    hidden = torch.from_numpy(np.concatenate([one.hidden for one in some]))
    if not hidden.isfinite().all():
        raise UserError("the draft model gives hidden states that are no numbers; try --dtype float32")
    counts = [len(one.positions) for one in some]
    return Examples(
        hidden,
        np.concatenate([one.accepted for one in some]),
        np.concatenate([one.confidence for one in some]),
        np.repeat(np.arange(len(some)), counts),
        list(pairwise(accumulate(counts, initial=0))),
    )


def fit(
    learned: Examples,
    held: Examples,
    recipe: Recipe,
    seed: int,
    device: torch.device,
    checkpoint: Path,
    facts: Mapping[str, Any],
    advance: Callable[[int], None],
) -> Fitted:
    """Train a head; `advance` is called with the number of steps done.

    `checkpoint` is written at the end of each epoch; one that is there is gone on from if it was begun under the same
    `facts` (JSON-like). Raises UserError for another one, and where the loss is no number any more.
    """
    training = Training(recipe, seed, learned.hidden.shape[1], device, len(learned.bounds))
    if checkpoint.exists():
        training.load(checkpoint, facts)
        advance(len(training.epochs) * training.steps)
    while not training.done:
        loss = training.epoch(learned, advance)
        number = len(training.epochs) + 1
        kls = [binary_kl(one.accepted, training.log_odds(one.hidden)) for one in (learned, held)]
        if not all(map(math.isfinite, (loss, *kls))):
            kept = f"; what was learned before is kept in {checkpoint}" if checkpoint.exists() else ""
            raise UserError(
                f"the loss is no number any more in epoch {number}; take a lower rate, such as "
                f"--recipe learning_rate={recipe.learning_rate / 10:g}, and another --out{kept}"
            )
        training.end(Epoch(number, training.rate(number * training.steps - 1), loss, *kls))
        training.save(checkpoint, facts)
    return Fitted(training.best, training.epochs)


class Training:
    """A head on its way: its tensors and the optimizer's are changed in place."""

    def __init__(self, recipe: Recipe, seed: int, width: int, device: torch.device, documents: int) -> None:
        self.recipe, self.seed, self.device = recipe, seed, device
        self.steps = math.ceil(documents / recipe.batch)  # of an epoch
        self.tensors = {name: x.to(device).requires_grad_() for name, x in start(recipe, seed, width).items()}
        self.optimizer = torch.optim.AdamW(self.tensors.values(), weight_decay=recipe.weight_decay)
        self.epochs: list[Epoch] = []
        self.best: dict[str, Tensor] = {}

    @property
    def head(self) -> AcceptanceHead:
        return head_of(self.tensors, self.recipe.depth)

    @property
    def done(self) -> bool:
        kls = [epoch.eval_kl for epoch in self.epochs]
        tired = 0 < self.recipe.patience <= len(kls) - 1 - kls.index(min(kls)) if kls else False
        return tired or len(kls) == self.recipe.epochs

    def rate(self, step: int) -> float:
        """The learning rate of a step of the whole training: a line up, then half a cosine down to 0."""
        total = self.recipe.epochs * self.steps
        rise = math.ceil(self.recipe.warmup * total)
        share = (step + 1) / rise if step < rise else (1 + math.cos(math.pi * (step - rise) / (total - rise))) / 2
        return self.recipe.learning_rate * share

    def epoch(self, learned: Examples, advance: Callable[[int], None]) -> float:
        """One pass over the documents in an order drawn anew; returns the mean loss, NaN as soon as one step's is."""
        number, losses = len(self.epochs), []
        bounds = learned.bounds[:]
        random.Random(stable_seed(self.seed, "epoch", number)).shuffle(bounds)
        for step in range(self.steps):
            batch = bounds[step * self.recipe.batch : (step + 1) * self.recipe.batch]
            hidden = torch.cat([learned.hidden[a:b] for a, b in batch]).to(self.device).float()
            accepted = torch.from_numpy(np.concatenate([learned.accepted[a:b] for a, b in batch])).to(self.device)
            loss = weighted_loss(self.head.log_odds(hidden), accepted, self.recipe.weight)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                return math.nan
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.tensors.values(), self.recipe.clip)
            self.optimizer.param_groups[0]["lr"] = self.rate(number * self.steps + step)
            self.optimizer.step()
            advance(1)
        return sum(losses) / len(losses)

    def log_odds(self, hidden: Tensor) -> NDArray[np.float32]:
        return predicted(self.head, hidden, self.device)

    def end(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        if all(epoch.eval_kl < one.eval_kl for one in self.epochs[:-1]):
            self.best = {name: tensor.detach().cpu().clone() for name, tensor in self.tensors.items()}

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        state = {
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "tensors": {name: tensor.detach() for name, tensor in self.tensors.items()},
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
        }
        save_checkpoint(path, facts, state)

    def load(self, path: Path, facts: Mapping[str, Any]) -> None:
        state = load_checkpoint(path, facts, ("epochs", "tensors", "best", "optimizer"), self.device)
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(state["tensors"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]
        self.best = {name: tensor.cpu() for name, tensor in state["best"].items()}


def start(recipe: Recipe, seed: int, width: int) -> dict[str, Tensor]:
    """Tensors of a head as they begin: uniform up to 1/√H, as linear layers of the official code do."""
    blocks = min(recipe.depth, 1) if recipe.shared_blocks else recipe.depth
    rng, most = torch.Generator().manual_seed(stable_seed(seed, "start")), width**-0.5
    shapes = {
        "blocks.weight": (blocks, width, width),
        "blocks.bias": (blocks, width),
        "out.weight": (2, width),
        "out.bias": (2,),
    }
    return {name: torch.empty(shape).uniform_(-most, most, generator=rng) for name, shape in shapes.items()}


def head_of(tensors: Mapping[str, Tensor], depth: int) -> AcceptanceHead:
    """The head that is made of tensors by their names in a file."""
    blocks, out = ([tensors[f"{layer}.{kind}"] for kind in ("weight", "bias")] for layer in ("blocks", "out"))
    return AcceptanceHead(blocks[0], blocks[1], out[0], out[1], depth)


def weighted_loss(log_odds: Tensor, accepted: Tensor, weight: float) -> Tensor:
    """Σ −w (1 − p_acc) log π_0 − p_acc log π_1 over w Σ (1 − p_acc) + Σ p_acc, of n positions (section 4.4)."""
    rejected = weight * (1 - accepted)
    total = -(rejected * logsigmoid(-log_odds) + accepted * logsigmoid(log_odds)).sum()
    return total / (rejected.sum() + accepted.sum())


@torch.no_grad()
def predicted(head: AcceptanceHead, hidden: Tensor, device: torch.device) -> NDArray[np.float32]:
    """The head's log odds [n] of hidden states [n, H]."""
    return np.concatenate([head.log_odds(part.to(device).float()).cpu().numpy() for part in hidden.split(CHUNK)])
