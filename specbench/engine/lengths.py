"""When to stop drafting: how many tokens a draft model proposes in a round. Any policy is lossless.

Before a round, a policy sets the most tokens that may be drafted. If it looks at tokens, it also decides after each
drafted token d_s whether the draft ends there. Notation: q is the distribution that d_s was drawn from; s = 1, 2, …
within the round. `Lengths` drafts a fixed number; every other policy is in the file of its method.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbench.engine.sampling import probabilities
from specbench.engine.types import Sampling, Verdict

RAW = Sampling(1.0)


@dataclass(frozen=True)
class DraftToken:
    """A drafted token as a policy sees it."""

    token: Tensor  # [1]
    logits: Tensor  # [1, V] that it was chosen by
    probs: Tensor | None  # [1, V] that it was drawn from; None: greedy
    hidden: Tensor | None  # [H]: the draft's last hidden state after the token before it, if the policy reads it

    @property
    def q(self) -> Tensor:
        """The distribution [V] that the token was drawn from; for a greedy token the model's own."""
        return (probabilities(self.logits, RAW) if self.probs is None else self.probs)[0]

    def chance(self) -> Tensor:
        """q(d) [1], on the device."""
        return self.q[self.token]

    def entropy(self) -> float:
        """H(q) in nats. Waits for the device."""
        return float(torch.special.entr(self.q).sum())


class Lengths:
    """Always γ tokens; and the base of the policies that choose. A policy follows one text at a time."""

    looks = False  # True: `enough` is asked after each drafted token
    hidden: Sequence[int] = ()  # the draft's hidden states that `enough` reads, as in Session.forward
    chosen_by: Mapping[str, str] = {}  # hashes of the YAML files that a method's `length` and `output` name

    def begin(self, prompt: list[int]) -> None:
        """Start on a new text. This is part of the prefill."""

    def most(self, gamma: int, context: int) -> int:
        """The most tokens of a round that begins after `context` tokens: at most γ."""
        return gamma

    def enough(self, step: int, token: DraftToken) -> bool:
        """True if the draft ends with its `step`-th token. Asked for every token until the draft ends."""
        return False

    def predictions(self, drafted: int) -> tuple[float, ...] | None:
        """The signal of each token of the round's draft, NaN where none was computed; None: there is no signal."""
        return None

    def observe(self, verdict: Verdict) -> None:
        """Learn from the verdict on the round's draft."""

    def check(self, sampling: Sampling) -> None:
        """Raise ValueError if the policy cannot work under this sampling."""

    def inputs(self) -> dict[str, str]:
        """As in Method, and so are the next three."""
        return {}

    def reset(self) -> None: ...

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None: ...


class SignalLengths(Lengths):
    """Stop by a signal of the tokens so far, but never before the `shortest`-th token."""

    looks = True

    def __init__(self, threshold: float, shortest: int) -> None:
        self.threshold, self.shortest = threshold, shortest

    def most(self, gamma: int, context: int) -> int:
        self.signals: list[float] = []
        return gamma

    def enough(self, step: int, token: DraftToken) -> bool:
        self.signals.append(self.signal(token))
        return step >= self.shortest and self.reached()

    def signal(self, token: DraftToken) -> float:
        """The signal of a token, which is recorded."""
        raise NotImplementedError

    def reached(self) -> bool:
        """True if the signals so far say stop."""
        raise NotImplementedError

    def predictions(self, drafted: int) -> tuple[float, ...] | None:
        return (*self.signals, *[math.nan] * (drafted - len(self.signals)))
