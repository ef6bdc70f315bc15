"""A runner on another device than what drives it: the draft's, where the target is elsewhere.

Tokens and features are copied to the model's device, logits and hidden states back. The copies are part of the forward
that needs them, and so are their seconds: a draft's forward ends when its logits are where they are drawn from.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.engine.runtimes.types import Lent, Reads, Runner


class Away:
    """What a runner computes, for tensors at `home`; its cache stays where the model is."""

    def __init__(self, runner: Runner, there: torch.device, home: torch.device) -> None:
        self.runner, self.there, self.home = runner, there, home

    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        ids = ids.to(self.there)
        if features is not None:
            features = features.to(self.there)
        if reads is not None:
            reads = reads._replace(allowed=reads.allowed.to(self.there), places=reads.places.to(self.there))
        logits, states = self.runner.forward(ids, keep, hidden, features, reads)
        return logits.to(self.home), None if states is None else states.to(self.home)

    def save(self) -> Any:
        return self.runner.save()

    def load(self, saved: Any) -> None:
        self.runner.load(saved)

    def lend(self, layers: Sequence[int]) -> Lent:
        return self.runner.lend(layers)

    def borrow(self, lent: Lent) -> None:
        self.runner.borrow(lent)

    def wipe(self) -> None:
        self.runner.wipe()

    def truncate(self, length: int) -> None:
        self.runner.truncate(length)

    def move(self, start: int, path: Sequence[int]) -> None:
        self.runner.move(start, path)
