"""The few types that decoding is made of: what a model says, what is drafted, how it is judged, and what a method is.

Notation: p the target's distribution, q the draft's, γ the draft length, K drafted tokens, V the vocabulary size. The
children of a token in a tree are called siblings.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from specbench.engine.ids import Later, to_device

if TYPE_CHECKING:
    from specbench.engine.penalties import Penalties


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from logits; temperature 0 is greedy. Target and draft sample alike.

    Penalties change the logits of a session (`Pair.penalised`), not the choice among them.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    repetition_penalty: float = 1.0  # 1: off
    presence_penalty: float = 0.0  # 0: off
    frequency_penalty: float = 0.0  # 0: off

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or more, not {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top-k must be 0 (off) or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top-p must be above 0 and at most 1, not {self.top_p}")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min-p must be 0 (off) or more and below 1, not {self.min_p}")
        if not self.repetition_penalty > 0:
            raise ValueError(f"the repetition penalty must be above 0 (1 is off), not {self.repetition_penalty}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalties(self) -> "Penalties | None":
        values = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        if values == (1, 0, 0):
            return None
        from specbench.engine.penalties import Penalties

        return Penalties(*values)

    @property
    def cuts(self) -> bool:
        """True if unlikely tokens are cut off."""
        return bool(self.top_k or self.top_p < 1 or self.min_p)


class Best(NamedTuple):
    """What has been read of logits on the host: the likeliest token of each row."""

    logits: Tensor  # [n, V]
    rows: Any  # [n, V]: the same memory, for numpy
    tokens: list[int]  # [n]: the lowest index on ties


class Scored(NamedTuple):
    """What a model says after a block of tokens: row i predicts the token after the i-th one.

    A method that wants other logits replaces them (`_replace`), and never changes them in place.
    """

    logits: Tensor  # [n, V]
    original: Tensor | None = None  # [K, V]: the target's own logits, where a method changed `logits`; None: the same
    hidden: Tensor | None = None  # [n, D]: hidden states after each token, if requested
    best: Best | None = None  # of the model's logits, if they were read on the host already

    @property
    def read(self) -> Best | None:
        """`best`, unless the logits were replaced since."""
        return self.best if self.best and self.best.logits is self.logits else None


@dataclass(frozen=True)
class Draft:
    """K proposed tokens, a chain or a tree; `probs` are the distributions they were drawn from.

    In a tree, `parents` holds the index of the token that each one follows, lower than its own, or -1 for the context;
    `ids.later` has them where they were made on the device.
    Siblings are different tokens, unless they were drawn independently (`probs`). They are tested in their order, and
    each row of `probs` is the distribution that a token was drawn from, given its earlier siblings.
    """

    tokens: Tensor  # [K] int64, on the model's device
    probs: Tensor | None  # [K, V]; None: a point mass on each token
    parents: Sequence[int] | None = None  # [K]; None: a chain
    predictions: tuple[float, ...] | None = None  # [K]: the signals of the drafter's length policy
    ids: list[int] | None = None  # [K]: the tokens of a chain on the host, if they are there already
    rows: Tensor | None = field(init=False, default=None)  # [K] on the device: parents + 1
    turns: tuple[Tensor, ...] = field(init=False, default=())  # of a drawn tree, on the device: see `sibling_turns`

    def __post_init__(self) -> None:
        if self.parents is not None:  # copied now: after the target's forward has begun, the host would wait for it
            device = self.tokens.device
            above = self.parents.made if isinstance(self.parents, Later) else to_device(self.parents, device)
            object.__setattr__(self, "rows", above + 1)
            if self.probs is not None:
                turns = sibling_turns(self.parents)
                object.__setattr__(self, "turns", tuple(to_device(turn, device) for turn in turns))


def sibling_turns(parents: Sequence[int]) -> list[list[int]]:
    """All first siblings, then all second ones, and so on: the nodes that can be tested together, in turn."""
    counts: Counter[int] = Counter()
    turns: list[list[int]] = []
    for node, parent in enumerate(parents):
        if counts[parent] == len(turns):
            turns.append([])
        turns[counts[parent]].append(node)
        counts[parent] += 1
    return turns


class Verdict(NamedTuple):
    """How a draft was judged: its tokens on `path` are accepted, then `token` follows (a correction, or the bonus)."""

    path: tuple[int, ...]  # indices into `drafted`; of a chain, 0, 1, …
    token: int | None  # None: nothing follows
    drafted: list[int]  # [K], now on the host
    targets: list[int]  # [K]: the target's likeliest token at each position
    ratios: list[float]  # [K]: p(drafted) / p(target's likeliest), from raw logits; of collaborating models, r's ratio
    rescued: tuple[int, ...] = ()  # the tokens of `path` that failed their test: the exact rule's, or the method's
    parents: tuple[int, ...] | None = None  # [K], as in the draft
    predictions: tuple[float, ...] | None = None  # [K], as in the draft
    confidences: list[float] | None = None  # [K]: q(drafted), by the draft's `probs`; None: they were not drawn
    overlaps: list[float] | None = None  # [K]: Σ min(q, r) at each token, T > 0; of collaborating models
    proposers: list[int] | None = None  # [K]: which of the collaborating models drafted the token

    @property
    def accepted(self) -> int:
        return len(self.path)

    @property
    def committed(self) -> list[int]:
        return [*(self.drafted[i] for i in self.path), *([] if self.token is None else [self.token])]

    @property
    def levels(self) -> int:
        """The levels of the draft that were verified: K of a chain; of a tree, as far down as the path was tested."""
        if self.parents is None:
            return len(self.drafted)
        return self.accepted + ((self.path[-1] if self.path else -1) in self.parents)

    def decisions(self, committed: int | None = None) -> list[str]:
        """The decision on each drafted token: accepted, rescued, rejected, unread (not tested) or cut.

        Siblings are tested in turn. If the text ended after `committed` tokens of the round, deeper levels were cut.
        """
        parents = range(-1, len(self.drafted) - 1) if self.parents is None else self.parents
        depths: list[int] = []
        decisions: list[str] = []
        chosen = dict(zip((-1, *self.path), (*self.path, len(self.drafted)), strict=True))  # node -> its chosen child
        for i, parent in enumerate(parents):
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
            if committed is not None and depths[i] > committed:
                decisions.append("cut")
            elif i in chosen:
                decisions.append("rescued" if i in self.rescued else "accepted")
            else:
                decisions.append("rejected" if parent in chosen and i < chosen[parent] else "unread")
        return decisions


@dataclass(frozen=True)
class Round:
    """One step of a method: the tokens it commits, and the verdict on its draft. Round 0 is the prefill."""

    tokens: list[int]
    verdict: Verdict | None = None  # None: nothing was drafted
    truncated: int = 0  # tokens that were cut off because the text ended before them

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
        if count == len(self.tokens):
            return self
        return replace(self, tokens=self.tokens[:count], truncated=self.truncated + len(self.tokens) - count)


class NotFinite(ArithmeticError):
    """A model computed logits that are NaN or infinite."""

    def __init__(self, role: str, position: int) -> None:
        super().__init__(f"the logits of the {role} are not finite after token {position} (counted from the prompt on)")


Passed = Callable[[], None]


class Watch(Protocol):
    """Observes every forward pass, as the harness' clock does (clock.py)."""

    def forward(self, model: str, width: int, context: int, passes: int = 1) -> AbstractContextManager[Passed]:
        """Entered around a pass that feeds `width` tokens after `context` cached ones, or a call of several passes.

        What it gives may be called after each of several passes.
        """

    def saw(self, model: str, position: int, highest: Tensor) -> None:
        """Note the highest logits [n] after the tokens from `position` on, to check later that they are finite."""


class Combination(Protocol):
    """How n models' logits become the distribution r that collaborative decoding samples from."""

    @property
    def level(self) -> str:
        """What is combined: probabilities or logits."""

    def rows(self, logits: Tensor, sampling: Sampling) -> Tensor:
        """The rows [k, V] that are kept of a model's logits [k, V], to be combined later."""

    def proposal(self, rows: Tensor, sampling: Sampling) -> Tensor:
        """The distributions q [k, V] that a model proposes from, by its own `rows`; T > 0."""

    def combined(self, rows: Sequence[Tensor], sampling: Sampling) -> Tensor:
        """The combined distributions r [k, V] of all models' rows; at T = 0 scores whose argmax is the token."""

    def choose(self, rows: Sequence[Tensor], sampling: Sampling, rng: torch.Generator) -> Tensor:
        """A token [k] for each row, drawn from r (T > 0) or its argmax."""


class Method(Protocol):
    """A decoding method: all that the harness knows of it."""

    lossless: bool
    reach: int  # the most tokens of a forward of the target in a round, and positions after the text of all models

    @property
    def combination(self) -> Combination | None:
        """The combination of several models that the method is exact for; None: it is exact for the target."""

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        """Decode without end; the first round is the prefill and commits one token."""

    def inputs(self) -> dict[str, str]:
        """Hashes of the method's inputs beyond its settings (a memory, weights), by name; for the manifest."""

    def check(self, sampling: Sampling) -> None:
        """Raise ValueError if the method cannot decode under this sampling."""

    def reset(self, task: str = "") -> None:
        """Forget what was learned from earlier prompts; the next prompts belong to `task`."""

    def state(self) -> Any:
        """What was learned from earlier prompts, as JSON-like data; None if the method learns nothing."""

    def restore(self, state: Any) -> None:
        """Go back to a `state()`."""


# The worth of an unfinished answer: prompt, answer so far -> the score of its completion.
Utility = Callable[[Sequence[int], Sequence[int]], float]


@runtime_checkable
class Foresighted(Protocol):
    """A method that must be given a utility before each prompt: an upper bound, not a decoder."""

    @property
    def needs_scores(self) -> bool:
        """True if it asks for the utility, which only tasks with scores have."""

    def set_utility(self, utility: Utility) -> None:
        """Give the worth of answers to the next prompt."""


@runtime_checkable
class Learner(Protocol):
    """A method that learns from its rounds while it decodes, before it can know where the text ends."""

    def ended(self, last: Round) -> None:
        """Forget what was learned from the part of the last round that the end of the text cut off."""


@runtime_checkable
class Additive(Protocol):
    """A learner in whose state what texts taught can be added up, so that texts may be decoded at the same time."""

    def added(self, state: Any, before: Any, after: Any) -> Any:
        """`state` and what a text taught that led from `before` to `after`; all three as `Method.state` tells them.

        Raises ValueError if what was learned cannot be added up under these settings.
        """


@runtime_checkable
class Calibrated(Protocol):
    """A method with inputs that were made from documents."""

    @property
    def doc_hashes(self) -> frozenset[str]:
        """The hashes of these documents (as in `Request.doc_hash`), as far as they are known."""

    def lacking(self, task: str) -> str:
        """Why the inputs change nothing about a task's texts when it begins, in words; empty if they may."""


class Stateless:
    """Base of methods that carry nothing from one prompt to the next."""

    combination: Combination | None = None

    def inputs(self) -> dict[str, str]:
        return {}

    def check(self, sampling: Sampling) -> None: ...

    def reset(self, task: str = "") -> None: ...

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None: ...
