"""FLy: training-free loosely speculative decoding (arXiv 2511.22972). Lossy.

A rejected draft token is kept if the target is unsure there (entropy gate) and agrees with the draft right after it
(deferred window). The paper's text and the authors' code measure both differently; `form` chooses one of them.
"""

import math
from typing import Literal

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from torch import Tensor

from specbench.config import UserError
from specbench.engine.accept import Tested, exact, exact_test, weigh
from specbench.engine.drafters import Drafter
from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import pick, probabilities
from specbench.engine.session import Session
from specbench.engine.types import Draft, Method, Sampling, Scored, Verdict, Watch
from specbench.methods.drafting import FIXED, DraftedMethod, DraftSettings, model_drafter


class Settings(DraftSettings):
    form: Literal["paper", "code"] = Field(description="whose entropy and window apply, unless these are set")
    entropy: Literal["form", "full_norm", "top3"] = Field(
        description="full_norm: of all tokens, over ln V (0 to 1); top3: the three likeliest tokens' terms, in nats"
    )
    entropy_threshold: float = Field(ge=0, description="least entropy where a mismatch may be kept (θ); 0: anywhere")
    window: Literal["form", "paper", "code"] = Field(description="paper: W tokens after the mismatch; code: W with it")
    window_length: int = Field(ge=1, description="tokens of the deferred window (W)")
    sampling: Literal["strict", "code"] = Field(
        description="at T > 0, strict: a mismatch is a rejection by speculative sampling; code: a greedy draft token "
        "that is neither of two draws from the target"
    )
    ngram: bool = Field(description="the drafter guesses its own tokens by prompt lookup and verifies them")
    ngram_size: int = Field(ge=1, description="the longest n-gram that is looked up")
    ngram_tokens: int = Field(ge=1, description="tokens that a lookup guesses")

    @field_validator("window_length")
    @classmethod
    def fits(cls, length: int, info: ValidationInfo) -> int:
        gamma: int | None = info.data.get("gamma")
        if gamma is not None and length >= gamma:
            raise PydanticCustomError(
                "window", f"{length} must be less than gamma ({gamma}), or no mismatch could ever be kept; raise gamma"
            )
        return length

    @property
    def normalised(self) -> bool:
        kind = {"paper": "full_norm", "code": "top3"}[self.form] if self.entropy == "form" else self.entropy
        return kind == "full_norm"

    @property
    def followers(self) -> int:
        """How many tokens after a mismatch must match."""
        kind = self.form if self.window == "form" else self.window
        return self.window_length if kind == "paper" else self.window_length - 1


class FLy(DraftedMethod):
    """Speculative decoding that defers the verdict on a mismatch until it has seen the tokens after it."""

    lossless = False
    rescues = True

    def __init__(self, target: Session, drafter: Drafter, settings: Settings) -> None:
        self.target, self.settings = target, settings
        self.drafter = Greedy(drafter) if settings.sampling == "code" else drafter
        self.gamma, self.reach = settings.gamma, settings.gamma + 1

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """Keep a mismatch where the entropy of the target's raw logits is high and all its followers match.

        Followers are looked up in the mask of original matches, so of two mismatches within a window the first is never
        kept, and none of the last W positions is. At T > 0 a token that matches only on the second try is a rescue too.
        One copy to the host.
        """
        count = draft.tokens.shape[0]
        tested, second = match(draft, scored, sampling, rng, self.settings.sampling == "code")
        weighed = weigh(draft, scored, sampling, rng, tested, [second, self.unsure(scored.logits[:count])])
        second_match, high = weighed.columns
        mask = [x or y for x, y in zip(weighed.passed, second_match, strict=True)]
        return weighed.rescue(lambda j: mask[j] or (high[j] and self.deferred(mask, j)))

    def unsure(self, logits: Tensor) -> Tensor:
        """The entropy gate, bool [K]: which rows of raw target logits [K, V] have an entropy of at least θ."""
        p = probabilities(logits, Sampling(1.0))
        if self.settings.normalised:
            entropy = torch.special.entr(p).sum(-1) / math.log(p.shape[-1])
        else:
            entropy = torch.special.entr(p.topk(min(3, p.shape[-1])).values).sum(-1)
        return entropy >= self.settings.entropy_threshold

    def deferred(self, mask: list[bool], j: int) -> bool:
        """The deferred window: True if all followers of j match and j is not among the last W positions."""
        inside = j + self.settings.window_length < len(mask)
        return inside and all(mask[j + 1 : j + 1 + self.settings.followers])


def match(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator, twice: bool) -> tuple[Tested, Tensor]:
    """The exact test of K draft tokens, and which of them match on a second try [K].

    `twice` is the official code's test at T > 0, for greedy drafts: a token matches if it equals one of two draws from
    p. The first draw is emitted.
    """
    if sampling.greedy or not twice:
        tested = exact_test(draft, scored.logits, sampling, rng)
        return tested, tested.passed
    count = draft.tokens.shape[0]
    p = probabilities(scored.logits, sampling)
    first = pick(p, rng)
    return Tested(draft.tokens == first[:count], first), draft.tokens == pick(p[:count], rng)


class Greedy(Drafter):
    """A drafter that proposes its likeliest tokens at any temperature."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.lengths = drafter, drafter.lengths

    def begin(self, prompt: list[int]) -> None:
        self.drafter.begin(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        return self.drafter.propose(context, gamma, Sampling(), rng)


class LookupDrafter(Drafter):
    """A draft model that guesses its own next tokens by prompt lookup and verifies them in one forward.

    It proposes what the model alone would, the same tokens at T = 0 and the same distribution at T > 0, in fewer
    forwards where the text repeats itself. Each forward costs a copy to the host, since the next one starts where the
    guess went wrong.
    """

    def __init__(self, session: Session, size: int, tokens: int, lengths: Lengths | None = None) -> None:
        self.session, self.size, self.tokens, self.lengths = session, size, tokens, lengths or Lengths()

    def begin(self, prompt: list[int]) -> None:
        self.session.restart(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """γ tokens. If a lookup finds nothing, the last guess is tried again. A guess never reaches beyond γ."""
        text, probs = list(context), []
        guess: list[int] = []
        while (left := len(context) + gamma - len(text)) > 0:
            guess = lookup(text, self.size, self.tokens) or guess
            trial = guess[: left - 1]
            self.session.truncate(min(len(self.session), len(text) - 1))
            logits = self.session.catch_up([*text, *trial]).logits[-len(trial) - 1 :]
            guessed = Draft(torch.tensor(trial, dtype=torch.long, device=self.session.device), None)
            verdict = exact(guessed, Scored(logits), sampling, rng)
            text += verdict.committed
            if not sampling.greedy:
                probs.append(probabilities(logits[: verdict.accepted + 1], sampling))
        drafted = torch.tensor(text[len(context) :], device=self.session.device)
        return Draft(drafted, torch.cat(probs) if probs else None)


def lookup(tokens: list[int], size: int, count: int) -> list[int]:
    """At most `count` tokens that followed the end of `tokens` where it first occurred; none if even its last is new.

    The end is as long as possible, up to `size` tokens, and does not overlap its first occurrence.
    """
    ids = np.asarray(tokens)
    for n in range(min(size, len(ids) // 2), 0, -1):
        places = np.flatnonzero((sliding_window_view(ids[:-n], n) == ids[-n:]).all(-1))
        if len(places):
            start = int(places[0]) + n
            return tokens[start : start + count]
    return []


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    base = model_drafter(settings, pair, watch)
    drafter: Drafter = base
    if settings.ngram:
        pair.need_one_tokenizer("fly lets it read guessed tokens; add --set fly.ngram=false for any draft")
        if settings.length != FIXED or settings.stop_at_eos:
            raise UserError("fly drafts a fixed length by prompt lookup; for another one add --set fly.ngram=false")
        drafter = LookupDrafter(base.session, settings.ngram_size, settings.ngram_tokens, base.lengths)
    return FLy(pair.session("target", watch), drafter, settings)
