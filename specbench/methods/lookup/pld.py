"""Prompt lookup decoding: a text that repeats itself drafts its own continuation (n-gram lookup). Lossless.

The longest n-gram that ends the text is looked up earlier in the text, prompt included. What followed it there is the
draft. At T > 0 the draft is a point mass on each token: accepted with p(d), else replaced by a draw from p without it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.engine.drafters import Drafter
from specbench.engine.models.pair import Pair
from specbench.engine.ngrams import Ngram
from specbench.engine.types import Draft, Method, Sampling, Watch
from specbench.methods.chains.sps import SpS
from specbench.methods.drafting import bounded


class LookupSettings(Base):
    """Settings of a method that looks up n-grams."""

    ngram: int = Field(ge=1, description="tokens of the longest n-gram that is looked up")
    shortest: int = Field(ge=1, description="tokens of the shortest; it is looked up where no longer one is found")
    gamma: int = Field(ge=1, description="tokens that are taken of what followed it (γ)")
    match: Literal["first", "last"] = Field(description="which counts of several places with the same n-gram")
    whole: bool = Field(description="only places that γ tokens follow")

    _fits = bounded("shortest", "ngram")

    def index(self) -> "Index":
        """A new, empty index."""
        return Index(self.ngram, self.shortest, self.gamma if self.whole else 1, self.match == "last")


class Settings(LookupSettings):
    reuse: bool = Field(description="where nothing is found, the last draft is tried again")


class Index:
    """The n-grams of a growing text, of `shortest` to `longest` tokens, and where the continuation of each begins.

    Only n-grams that `ahead` tokens follow are indexed, so none that ends the text. Of several places with the same
    n-gram the first counts, or the latest if `latest` is true. A token adds at most one entry of each length, and the
    text itself is never searched: adding a token and looking one up cost the same however long the text is.
    """

    def __init__(self, longest: int, shortest: int, ahead: int, latest: bool) -> None:
        self.longest, self.shortest, self.ahead, self.latest = longest, shortest, ahead, latest
        self.tokens: list[int] = []
        self._continuations: dict[Ngram, int] = {}

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text, in place."""
        text, continuations = self.tokens, self._continuations
        for token in tokens:
            text.append(token)
            start = len(text) - self.ahead  # the end of the n-grams that enough tokens follow from now on
            for n in range(self.shortest, min(self.longest, start) + 1):
                ngram = tuple(text[start - n : start])
                if self.latest or ngram not in continuations:
                    continuations[ngram] = start

    def find(self, text: Sequence[int]) -> int | None:
        """Where, in the indexed text, the longest n-gram that ends `text` is continued; None if nowhere."""
        for n in range(min(self.longest, len(text)), self.shortest - 1, -1):
            start = self._continuations.get(tuple(text[len(text) - n :]))
            if start is not None:
                return start
        return None


class Lookup(Drafter):
    """Drafts what followed the end of the text at an earlier place; on a miss nothing, or the last draft again.

    `index` makes an empty index. Committed text only grows, so each token is indexed once.
    """

    def __init__(self, index: Callable[[], Index], reuse: bool, device: torch.device) -> None:
        self.new_index, self.reuse, self.device = index, reuse, device

    def begin(self, prompt: list[int]) -> None:
        self.index = self.new_index()
        self.drafted: list[int] = []
        self.index.extend(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A chain of at most γ tokens, point masses at any temperature; it may be empty."""
        index = self.index
        index.extend(context[len(index.tokens) :])
        start = index.find(index.tokens[-index.longest :])
        if start is not None:
            self.drafted = index.tokens[start : start + gamma]
        elif not self.reuse:
            self.drafted = []
        return Draft(torch.tensor(self.drafted, dtype=torch.long, device=self.device), None)


def drafter(settings: Settings, tokenizer: str | None, device: torch.device) -> Drafter:
    """The drafter alone, without a model. It works with any tokenizer, so the hash `tokenizer` is not used."""
    return Lookup(settings.index, settings.reuse, device)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Speculative sampling with a lookup in place of a draft model; uses only the pair's target."""
    lookup = drafter(settings, pair.tokenizer_hash, pair.device)
    return SpS(pair.session("target", watch), lookup, settings.gamma)
