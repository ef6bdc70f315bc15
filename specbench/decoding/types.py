"""The few types that decoding is made of. Notation: p target, q draft, γ draft length, V vocabulary size."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

if TYPE_CHECKING:
    from specbench.decoding.combine import Combination


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from logits; temperature 0 is greedy. Applied to the target and to the draft alike."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or more, not {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top-k must be 0 (off) or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top-p must be above 0 and at most 1, not {self.top_p}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


class Scored(NamedTuple):
    """What a model says after a block of tokens: row i predicts the token after the i-th one."""

    logits: Tensor  # [n, V]
    original: Tensor | None = None  # [K, V]: the target's own, where a method changed `logits`; None: the same
    hidden: Tensor | None = None  # [n, D]: hidden states after reading each token, if they were asked for


@dataclass(frozen=True)
class Draft:
    """K proposed tokens, a chain or a tree; `probs` are the distributions they were drawn from.

    In a tree, `parents` tells which token each one follows: an index before its own, or -1 for the context. Those that
    follow the same one differ, unless they were drawn independently (`probs`); they are tested in their order, and each
    row of `probs` is what a token was drawn from given those before it that follow the same.
    """

    tokens: Tensor  # [K] int64, on the model's device
    probs: Tensor | None  # [K, V]; None: a point mass on each token
    parents: tuple[int, ...] | None = None  # [K]; None: a chain
    predictions: tuple[float, ...] | None = None  # [K]: what the drafter's length policy went by
    rows: Tensor | None = field(init=False, default=None)  # [K] on the device: parents + 1
    turns: tuple[Tensor, ...] = field(init=False, default=())  # of a drawn tree, on the device: see `tested_in_turn`

    def __post_init__(self) -> None:
        if self.parents is not None:  # sent now: behind the target's forward, the host would wait for it
            device = self.tokens.device
            object.__setattr__(self, "rows", torch.tensor(self.parents, device=device) + 1)
            if self.probs is not None:
                turns = tested_in_turn(self.parents)
                object.__setattr__(self, "turns", tuple(torch.tensor(turn, device=device) for turn in turns))


def tested_in_turn(parents: tuple[int, ...]) -> list[list[int]]:
    """The nodes that are tested first of those that follow the same one, then the second ones, and so on."""
    seen: Counter[int] = Counter()
    found: list[list[int]] = []
    for node, parent in enumerate(parents):
        if seen[parent] == len(found):
            found.append([])
        found[seen[parent]].append(node)
        seen[parent] += 1
    return found


class Verdict(NamedTuple):
    """How a draft was judged: its tokens on `path` stand, then `token` follows (a correction, or the bonus)."""

    path: tuple[int, ...]  # indices into `drafted`; of a chain, the first few
    token: int | None  # None: nothing follows
    drafted: list[int]  # K tokens, now on the host
    targets: list[int]  # K tokens: what the target preferred at each position
    ratios: list[float]  # K: p(drafted) / p(target's preference), from raw logits; of collaborating models r's own
    rescued: tuple[int, ...] = ()  # those of `path` that the exact rule would have rejected
    parents: tuple[int, ...] | None = None  # as in the draft
    predictions: tuple[float, ...] | None = None  # K: as in the draft
    confidences: list[float] | None = None  # K: q(drafted), as in the draft's `probs`; None: they were not drawn
    overlaps: list[float] | None = None  # K: Σ min(q, r) where it was drafted, T > 0; of collaborating models
    proposers: list[int] | None = None  # K: which of the collaborating models drafted it

    @property
    def accepted(self) -> int:
        return len(self.path)

    @property
    def committed(self) -> list[int]:
        return [*(self.drafted[i] for i in self.path), *([] if self.token is None else [self.token])]

    @property
    def levels(self) -> int:
        """Levels of the draft where it was verified: of a chain K, of a tree those that the path met."""
        if self.parents is None:
            return len(self.drafted)
        return self.accepted + ((self.path[-1] if self.path else -1) in self.parents)

    def decisions(self, committed: int | None = None) -> list[str]:
        """What became of each drafted token: accepted, rescued, rejected, unread (not tested) or cut.

        Tokens that follow the same one are tested in turn. Where a text ended with `committed` tokens of the round,
        deeper levels were cut off.
        """
        parents = range(-1, len(self.drafted) - 1) if self.parents is None else self.parents
        depths: list[int] = []
        found: list[str] = []
        chosen = dict(zip((-1, *self.path), (*self.path, len(self.drafted)), strict=True))  # node -> what follows it
        for i, parent in enumerate(parents):
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
            if committed is not None and depths[i] > committed:
                found.append("cut")
            elif i in chosen:
                found.append("rescued" if i in self.rescued else "accepted")
            else:
                found.append("rejected" if parent in chosen and i < chosen[parent] else "unread")
        return found


@dataclass(frozen=True)
class Round:
    """One step of a method: the tokens it commits, and how they came about. Round 0 is the prefill."""

    tokens: list[int]
    verdict: Verdict | None = None  # None: nothing was drafted
    truncated: int = 0  # tokens that were cut from the end: behind EOS, a stop string or the length limit

    @property
    def drafted(self) -> int:
        return len(self.verdict.drafted) if self.verdict else 0

    @property
    def accepted(self) -> int:
        """Drafted tokens that were accepted and not cut off."""
        return min(self.verdict.accepted, len(self.tokens)) if self.verdict else 0

    @property
    def rescued(self) -> int:
        return len(set(self.verdict.rescued).intersection(self.verdict.path[: self.accepted])) if self.verdict else 0

    def cut(self, count: int) -> "Round":
        """The same round with only its first `count` tokens."""
        return replace(self, tokens=self.tokens[:count], truncated=self.truncated + len(self.tokens) - count)


class NotFinite(ArithmeticError):
    """A model gave logits among which are no numbers, or infinite ones."""

    def __init__(self, role: str, position: int) -> None:
        super().__init__(f"the logits of the {role} are not finite behind token {position} (its prompt counted)")


class Watch(Protocol):
    """Told of every forward pass; the harness' clock is one (measure.py)."""

    def forward(self, model: str, width: int, context: int) -> AbstractContextManager[None]:
        """Entered around a pass of `width` tokens behind `context` cached ones."""

    def saw(self, model: str, position: int, highest: Tensor) -> None:
        """The highest logits [n] behind tokens from `position` on; only a later look tells whether they are finite."""


class Method(Protocol):
    """All that the harness knows of a decoding method."""

    lossless: bool
    reach: int  # the most tokens that a round may feed beyond the committed text

    @property
    def combination(self) -> "Combination | None":
        """Of models that decode together: what the method is exact for; None: the target."""

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        """Decode for ever; the first round is the prefill and commits one token."""

    def inputs(self) -> dict[str, str]:
        """Hashes of what the method was given beside its settings (a memory, weights), by name; for the manifest."""

    def check(self, sampling: Sampling) -> None:
        """Raise ValueError if the method cannot decode under this sampling."""

    def reset(self, task: str = "") -> None:
        """Forget whatever was learned from earlier prompts; those that follow belong to `task`."""

    def state(self) -> Any:
        """What was learned from earlier prompts, as JSON-like data; None if the method learns nothing."""

    def restore(self, state: Any) -> None:
        """Go back to a `state()`."""


# What a beginning of an answer is worth: prompt, tokens of the answer -> the score of its completion.
Utility = Callable[[Sequence[int], Sequence[int]], float]


@runtime_checkable
class Foresighted(Protocol):
    """A method that is told, before each prompt, what answers to it are worth: an upper bound, not a decoder."""

    def told(self, utility: Utility) -> None:
        """Of the next prompt."""


class Stateless:
    """For methods that carry nothing from one prompt to the next."""

    combination: "Combination | None" = None

    def inputs(self) -> dict[str, str]:
        return {}

    def check(self, sampling: Sampling) -> None: ...

    def reset(self, task: str = "") -> None: ...

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None: ...
