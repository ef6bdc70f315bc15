"""SAM-Decoding: what followed the longest suffix of the text where it occurred first. Lossless.

Hu et al., arXiv 2411.10666, with its dynamic automaton alone. Where too little followed a suffix, a shorter one counts,
whose first occurrence may be earlier.
"""

from typing import Literal

import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.engine.accept import exact
from specbench.engine.drafters import Drafter, ModelDrafter
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Draft, Method, Sampling, Watch
from specbench.methods.drafting import DraftedMethod
from specbench.methods.lookup.suffix_automaton import Automaton


class Settings(Base):
    gamma: int = Field(ge=1, description="the most tokens of a draft (γ)")
    shortest: int = Field(ge=1, description="tokens of the shortest suffix that is looked up")
    fallback: Literal["none", "draft"] = Field(description="draft: the draft model drafts where no suffix is so long")
    fallback_gamma: int = Field(ge=1, description="tokens of the draft model's chain")

    def reach(self) -> int:
        """The most tokens of a round, including the last committed one."""
        return 1 + max(self.gamma, self.fallback_gamma if self.fallback == "draft" else 0)


class SamDrafter(Drafter):
    """Drafts a chain from an automaton of the text, or else by `model`, if there is one."""

    def __init__(self, settings: Settings, device: torch.device, model: Drafter | None = None) -> None:
        self.settings, self.device, self.model = settings, device, model

    def begin(self, prompt: list[int]) -> None:
        self.text = Automaton(0)  # nothing is counted
        if self.model:
            self.model.begin(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """At most γ tokens, point masses at any temperature, or the draft model's chain."""
        self.text.extend(context[self.text.size :])
        found = self.found(context)
        if self.model and not found:
            return self.model.propose(context, self.settings.fallback_gamma, sampling, rng)
        return Draft(torch.tensor(found, dtype=torch.long, device=self.device), None)

    def found(self, context: list[int]) -> list[int]:
        """What followed the longest suffix at its first place, or a shorter one, the first that more than γ follow.

        The last token, which the target has not read yet, does not count among them, as in the official code.
        """
        known, settings, start = len(context) - 1, self.settings, 0
        for match in self.text.earlier():
            if not start and match.length < settings.shortest:
                return []
            start = self.text.first[match.state]
            if known - start > settings.gamma:
                break
        return context[start : min(start + settings.gamma, known)] if start else []


class Sam(DraftedMethod):
    """Speculative sampling with drafts of suffixes."""

    penalised = True
    lossless = True
    accept = staticmethod(exact)

    def __init__(self, target: Session, drafter: SamDrafter, settings: Settings) -> None:
        self.target, self.drafter = target, drafter
        self.gamma, self.reach = settings.gamma, settings.reach()


def drafter(settings: Settings, tokenizer: str | None, device: torch.device) -> SamDrafter:
    """The drafter alone, without the draft model. It works with any tokenizer, so `tokenizer` is not used."""
    return SamDrafter(settings, device)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses the pair's target, and its draft only as a fallback."""
    model = ModelDrafter(pair.session("draft", watch)) if settings.fallback == "draft" else None
    return Sam(pair.session("target", watch), SamDrafter(settings, pair.device, model), settings)
