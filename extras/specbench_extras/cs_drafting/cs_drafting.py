"""Cascade speculative drafting: a draft model that itself speculates, then plain look-ups. Lossless.

CS-Drafting (arXiv 2312.11462). Vertical cascade: the draft model verifies guesses that are looked up in the text, so
that it takes fewer forwards for the same tokens. Horizontal cascade: the tokens of a draft that are the least likely to
stand, its last ones, are left to the cheapest drafter, the look-up alone.
"""

import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.engine.drafters import Drafter
from specbench.engine.models.pair import Pair
from specbench.engine.types import Draft, Method, Sampling, Watch
from specbench.methods.chains.sps import SpS
from specbench.methods.lossy.fly import LookupDrafter, lookup


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens of the draft model a round (γ)")
    later: int = Field(ge=0, description="draft tokens after these, looked up; 0: none")
    ngram: int = Field(ge=1, description="tokens of the longest n-gram that is looked up")
    guesses: int = Field(ge=1, description="tokens that the draft model verifies at a time")


class Lengthened(Drafter):
    """A drafter's tokens, and up to `later` after them: what followed their end earlier in the text."""

    def __init__(self, drafter: Drafter, later: int, ngram: int) -> None:
        self.drafter, self.later, self.ngram, self.lengths = drafter, later, ngram, drafter.lengths

    def begin(self, prompt: list[int]) -> None:
        self.drafter.begin(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """γ - `later` tokens of the drafter, then point masses at any temperature."""
        draft = self.drafter.propose(context, gamma - self.later, sampling, rng)
        later = lookup([*context, *draft.tokens.tolist()], self.ngram, self.later) if self.later else []
        tokens = torch.cat([draft.tokens, torch.tensor(later, dtype=torch.long, device=draft.tokens.device)])
        if draft.probs is None:
            return Draft(tokens, None)
        certain = torch.zeros(len(later), draft.probs.shape[-1], dtype=draft.probs.dtype, device=draft.probs.device)
        certain.scatter_(-1, tokens[len(draft.tokens) :, None], 1.0)
        return Draft(tokens, torch.cat([draft.probs, certain]))


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Raises UserError for two tokenizers."""
    pair.need_one_tokenizer("cs-drafting lets the draft model read guessed tokens")
    most = settings.gamma + settings.later
    inner = LookupDrafter(pair.session("draft", watch), settings.ngram, settings.guesses)
    return SpS(pair.session("target", watch), Lengthened(inner, settings.later, settings.ngram), most)
