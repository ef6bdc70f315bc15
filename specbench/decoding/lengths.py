"""When to stop drafting: how many tokens a draft model proposes in a round. Lossless, whatever a policy decides.

A policy says before the round how many tokens there may be, and if it looks on, behind each drafted token d_s whether
the draft goes on. Notation: q the distribution that d_s was drawn from, s = 1, 2, … within the round.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.acceptance import AcceptanceHead, features
from specbench.decoding.sampling import probabilities
from specbench.decoding.session import LAST, Session
from specbench.decoding.types import Sampling, Verdict

RAW = Sampling(1.0)


@dataclass(frozen=True)
class Drawn:
    """A drafted token as a policy sees it."""

    token: Tensor  # [1]
    logits: Tensor  # [1, V] that it was chosen by
    probs: Tensor | None  # [1, V] that it was drawn from; None: greedy
    hidden: Tensor | None  # [H]: the draft's last hidden state behind the token before it, if the policy reads it

    @property
    def q(self) -> Tensor:
        """The distribution [V] that the token was drawn from; the model's own where it was chosen greedily."""
        return (probabilities(self.logits, RAW) if self.probs is None else self.probs)[0]

    def chance(self) -> Tensor:
        """q(d) [1], on the device."""
        return self.q[self.token]

    def entropy(self) -> float:
        """H(q) in nats. Waits for the device."""
        return float(torch.special.entr(self.q).sum())


class Lengths:
    """Always γ tokens; and the base of the policies that choose. One has one text at a time, as its drafter has."""

    looks = False  # whether it is asked behind each drafted token
    hidden: Sequence[int] = ()  # the draft's hidden states that it then reads, as in Session.forward
    chosen_by: Mapping[str, str] = {}  # hashes of what a method's `length` and `output` name

    def begin(self, prompt: list[int]) -> None:
        """A new text; belongs to the prefill."""

    def most(self, gamma: int, context: int) -> int:
        """A round begins behind `context` tokens: how many may be drafted, at most γ."""
        return gamma

    def enough(self, step: int, drawn: Drawn) -> bool:
        """Whether the draft ends with its `step`-th token. Asked until it does, at its last token too."""
        return False

    def predictions(self, drafted: int) -> tuple[float, ...] | None:
        """What this policy went by at each token of the round's draft, NaN where it looked at none; None: nothing."""
        return None

    def observe(self, verdict: Verdict) -> None:
        """What became of the draft."""

    def check(self, sampling: Sampling) -> None:
        """Raise ValueError if the policy cannot work under this sampling."""

    def inputs(self) -> dict[str, str]:
        """As in Method, and so are the next three."""
        return {}

    def reset(self) -> None: ...

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None: ...


class Looking(Lengths):
    """A policy that looks at a signal of each token and stops by it, never before the `shortest`-th token."""

    looks = True

    def __init__(self, threshold: float, shortest: int) -> None:
        self.threshold, self.shortest = threshold, shortest

    def most(self, gamma: int, context: int) -> int:
        self.seen: list[float] = []
        return gamma

    def enough(self, step: int, drawn: Drawn) -> bool:
        self.seen.append(self.signal(drawn))
        return step >= self.shortest and self.reached()

    def signal(self, drawn: Drawn) -> float:
        """What is recorded of a token."""
        raise NotImplementedError

    def reached(self) -> bool:
        """Whether the signals so far say stop."""
        raise NotImplementedError

    def predictions(self, drafted: int) -> tuple[float, ...] | None:
        return (*self.seen, *[math.nan] * (drafted - len(self.seen)))


class Confidence(Looking):
    """Stop behind a token with q(d) < threshold (Kim et al., arXiv 2302.07863; Liu et al., arXiv 2404.18911)."""

    def signal(self, drawn: Drawn) -> float:
        return float(drawn.chance())

    def reached(self) -> bool:
        return self.seen[-1] < self.threshold


class Cumulative(Confidence):
    """Stop as soon as the product of all q(d) is below the threshold (as in Xu et al., 2023)."""

    def reached(self) -> bool:
        return math.prod(self.seen) < self.threshold


class Entropy(Looking):
    """Stop behind a token drawn from a distribution with more entropy than the threshold, in nats."""

    def signal(self, drawn: Drawn) -> float:
        return drawn.entropy()

    def reached(self) -> bool:
        return self.seen[-1] > self.threshold


class Predicted(Looking):
    """SpecDec++ (arXiv 2405.19715): stop if P(some token is rejected) exceeds the threshold.

    The head scores d_{s-1} from the state behind it, which the forward that brought d_s gives for free. So the chance
    that all tokens stand is the product over those before d_s, and d_s itself is never scored (official code).

    `confident` tells a head that reads q(d) too.
    """

    hidden = LAST

    def __init__(
        self, head: AcceptanceHead, threshold: float, shortest: int, hashes: Mapping[str, str], confident: bool = False
    ) -> None:
        super().__init__(threshold, shortest)
        self.head, self.hashes, self.confident = head, hashes, confident
        self.chance = torch.empty(0)  # q of the last token drawn, [1]

    def enough(self, step: int, drawn: Drawn) -> bool:
        if step > 1:
            assert drawn.hidden is not None
            inputs = features(drawn.hidden, self.chance) if self.confident else drawn.hidden
            self.seen.append(self.head.probability(inputs))
        if self.confident:
            self.chance = drawn.chance()
        return step >= self.shortest and 1 - math.prod(self.seen) > self.threshold

    def inputs(self) -> dict[str, str]:
        return dict(self.hashes)


class Heuristic(Lengths):
    """The schedule of transformers' assisted generation: `first` tokens, then +2 if all stood, else -1; at least 1.

    It begins anew with each text (transformers keeps the length on the draft model, and it leaks from text to text).
    """

    def __init__(self, first: int) -> None:
        self.first = first

    def begin(self, prompt: list[int]) -> None:
        self.length = self.first

    def most(self, gamma: int, context: int) -> int:
        return min(gamma, self.length)

    def observe(self, verdict: Verdict) -> None:
        all_stood = verdict.accepted == self.length
        self.length = self.length + 2 if all_stood else max(1, self.length - 1)


class Oracle(Lengths):
    """Greedy only: knows the text, and stops just before each disagreement (SpecDec++, Theorem 4.1).

    No token is ever discarded, and no target forward is one too many: the bound for all policies. The text is decoded
    in the prefill, by sessions of its own that nobody times as forwards; behind its first `tokens` tokens it is not
    known, and γ tokens are drafted.
    """

    def __init__(self, target: Session, draft: Session, eos_ids: frozenset[int], tokens: int) -> None:
        self.target, self.draft, self.eos_ids, self.tokens = target, draft, eos_ids, tokens

    def begin(self, prompt: list[int]) -> None:
        text = [int(self.target.restart(prompt).logits.argmax(-1))]
        while len(text) < self.tokens and text[-1] not in self.eos_ids:
            text.append(int(self.target.forward(text[-1:]).logits.argmax(-1)))
        self.draft.truncate(0)
        choices = self.draft.forward([*prompt, *text[:-1]], keep=len(text)).logits.argmax(-1).tolist()
        self.runs = [0] * len(text)  # tokens from here on that the draft has right
        for i in reversed(range(len(text))):
            if choices[i] == text[i]:
                self.runs[i] = 1 + (self.runs[i + 1] if i + 1 < len(text) else 0)
        self.prompt = len(prompt)

    def most(self, gamma: int, context: int) -> int:
        known = context - self.prompt
        return min(gamma, self.runs[known]) if known < len(self.runs) else gamma

    def check(self, sampling: Sampling) -> None:
        if not sampling.greedy:
            raise ValueError("oracle knows greedy texts only; use --temperature 0")
