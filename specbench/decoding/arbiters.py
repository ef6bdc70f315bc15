"""Who decides at a mismatch of draft and target: the trained arbitrator of CoSpec, and those it is held against."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specbench.decoding.session import Session
from specbench.decoding.types import Utility


@dataclass(frozen=True)
class Block:
    """What a round is judged by: K drafted tokens, and the target's candidate behind the ones before each."""

    drafted: list[int]  # [K]
    targets: list[int]  # [K]: the drafted token where they match
    mismatches: list[int]  # positions, from 0
    tokens: Tensor  # [2K] on the device: d_1 … d_K t_1 … t_K


class Arbiter(Protocol):
    """Told of every committed token; asked about the mismatches of a block, one after the other."""

    def begin(self, prompt: list[int]) -> None:
        """Start on a new prompt; belongs to the prefill."""

    def read(self, tokens: list[int]) -> None:
        """Further tokens were committed."""

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        """For each mismatch in turn whether the draft's token is kept; nobody asks on behind the first that is not."""


class Always:
    """Keeps every drafted token."""

    def begin(self, prompt: list[int]) -> None: ...

    def read(self, tokens: list[int]) -> None: ...

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        return (True for _ in block.mismatches)


class Never(Always):
    """Keeps none: speculative sampling."""

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        return (False for _ in block.mismatches)


class Random(Always):
    """Keeps each with the same probability: what a policy is worth beyond how often it accepts."""

    def __init__(self, probability: float) -> None:
        self.probability = probability

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        lots: list[float] = torch.rand(len(block.mismatches), generator=rng, device=rng.device).tolist()
        return (lot < self.probability for lot in lots)


def log_odds(probability: float) -> float:
    """Infinite for 0 and 1."""
    if 0 < probability < 1:
        return math.log(probability) - math.log1p(-probability)
    return math.copysign(math.inf, probability - 0.5)


class Learned(Always):
    """The trained policy π: keeps a drafted token if σ(logit) > δ (CoSpec, Eq. 17).

    `session` is of an arbitrator (specbench/arbitrator.py): its logits [n, 1] are the head's. The cache holds committed
    tokens only; one forward a round feeds those that are new and the block, and the block is rolled back.
    """

    def __init__(self, session: Session, threshold: float, hybrid: bool = True) -> None:
        self.session, self.hybrid = session, hybrid
        self.log_odds = log_odds(threshold)
        self.unread: list[int] = []

    def begin(self, prompt: list[int]) -> None:
        self.session.restart(prompt)
        self.unread = []

    def read(self, tokens: list[int]) -> None:
        self.unread += tokens

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        for logit in self.logits(block):
            yield logit > self.log_odds

    def logits(self, block: Block) -> list[float]:
        """One for each mismatch. Reads what was committed meanwhile, in place."""
        width = len(block.tokens)
        fed = torch.cat([torch.tensor(self.unread, dtype=torch.long, device=self.session.device), block.tokens])
        scored = self.session.forward(fed, keep=width, together=width if self.hybrid else 0)
        self.session.truncate(len(self.session) - width)
        self.unread = []
        found: list[float] = scored.logits[: width // 2, 0].double()[block.mismatches].tolist()
        return found


class Oracle(Always):
    """Finishes both branches of a mismatch and keeps the draft's token unless its branch is worth less (Eq. 6-7).

    It needs to be told, before each prompt, what a text is worth, which no real method knows.
    """

    def __init__(self) -> None:
        self.utility: Utility | None = None
        self.prompt: list[int] = []
        self.answer: list[int] = []

    def begin(self, prompt: list[int]) -> None:
        self.prompt, self.answer = prompt, []

    def read(self, tokens: list[int]) -> None:
        self.answer = [*self.answer, *tokens]

    def keeps(self, block: Block, rng: torch.Generator) -> Iterator[bool]:
        if self.utility is None:
            raise ValueError("the oracle arbiter must be told how answers are scored; only `specbench run` does that")
        for i in block.mismatches:
            before = [*self.answer, *block.drafted[:i]]
            ours, theirs = ([*before, token] for token in (block.drafted[i], block.targets[i]))
            yield self.utility(self.prompt, ours) >= self.utility(self.prompt, theirs)
