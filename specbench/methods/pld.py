"""Prompt lookup decoding: a text that repeats itself drafts its own continuation (n-gram lookup). Lossless.

The longest n-gram that the text ends with is looked up in the text before, the prompt among it, and what followed it
there is the draft. At T > 0 it is a point mass on each token: accepted with p(d), else a draw from p without it.
"""

from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from specbench.config import Settings as Base
from specbench.decoding.drafters import Drafter
from specbench.decoding.lookup import Index, Lookup
from specbench.decoding.types import Method, Watch
from specbench.methods.sps import SpS
from specbench.models import Pair


class Retrieval(Base):
    """Settings of a method that looks up n-grams."""

    ngram: int = Field(ge=1, description="tokens of the longest n-gram that is looked up")
    shortest: int = Field(ge=1, description="tokens of the shortest; it is looked up where no longer one is found")
    gamma: int = Field(ge=1, description="tokens that are taken of what followed it (γ)")
    match: Literal["first", "last"] = Field(description="which counts of several places with the same n-gram")
    whole: bool = Field(description="only places that γ tokens follow")

    @field_validator("shortest")
    @classmethod
    def fits(cls, shortest: int, info: ValidationInfo) -> int:
        ngram: int | None = info.data.get("ngram")
        if ngram is not None and shortest > ngram:
            raise PydanticCustomError("bounds", f"{shortest} is more than ngram ({ngram}); change one of them")
        return shortest

    def index(self) -> Index:
        """An empty one."""
        return Index(self.ngram, self.shortest, self.gamma if self.whole else 1, self.match == "last")


class Settings(Retrieval):
    reuse: bool = Field(description="where nothing is found, the last draft is tried again")


def drafter(settings: Settings, tokenizer: str | None, device: torch.device) -> Drafter:
    """What drafts, without a model; works with any tokenizer (whose hash is given)."""
    return Lookup(settings.index, settings.reuse, device)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Speculative sampling with a look-up for a draft model; of the pair the target alone."""
    drafts = drafter(settings, pair.tokenizer_hash, pair.device)
    return SpS(pair.session("target", watch), drafts, settings.gamma)
