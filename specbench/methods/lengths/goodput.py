"""Draft lengths that promise the most tokens a second for the texts that are decoded together. Lossless.

SmartSpec, later TurboSpec (Liu et al., arXiv 2406.14066): k = argmax of expected tokens over the time of a step.
"""

import numpy as np
from pydantic import Field

from specbench.base.stats import Floats
from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.batched import share, shared
from specbench.engine.types import Verdict
from specbench.methods.chains.sps import adaptive
from specbench.methods.drafting import LengthSettings


class Settings(LengthSettings):
    token: float = Field(ge=0, description="time of each further token of a target forward, over that of one token")
    draft: float = Field(gt=0, description="time of a draft forward of one token, over the target's")
    draft_token: float = Field(ge=0, description="time of each further token of it, over the target's forward")
    expected: float = Field(ge=0, lt=1, description="acceptance rate that a text begins with (α)")
    memory: float = Field(ge=1, description="verified draft tokens that the moving average of α reaches back")


class Goodput(Lengths):
    """Maximise the sum of (1 - α^(k+1)) / (1 - α) over all n texts over the time of a step that drafts k for each.

    A step takes 1 + token · (n (k + 1) - 1) + k · (draft + draft_token · (n - 1)) target forwards. α is a moving
    average over a text's verified draft tokens, and returns to `expected` while nothing is drafted. All texts choose by
    the same sum, so they draft equally long, and none waits for a longer draft of another.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def begin(self, prompt: list[int]) -> None:
        self._set(self.settings.expected)

    def most(self, gamma: int, context: int) -> int:
        rates, k = np.array(shared() or [self.alpha]), np.arange(gamma + 1.0)
        tokens = np.cumsum(rates[:, None] ** k, axis=1).sum(0)  # Leviathan et al., Eq. 1
        return int((tokens / self.time(k, len(rates))).argmax())

    def time(self, k: Floats, texts: int) -> Floats:
        """The time of a step by k, in target forwards of one token."""
        given = self.settings
        verify = 1 + given.token * (texts * (k + 1) - 1)
        return verify + k * (given.draft + given.draft_token * (texts - 1))

    def observe(self, verdict: Verdict) -> None:
        rejected = verdict.accepted < len(verdict.drafted)
        outcomes = [1.0] * verdict.accepted + [0.0] * rejected if verdict.drafted else [self.settings.expected]
        alpha = self.alpha
        for outcome in outcomes:
            alpha += (outcome - alpha) / self.settings.memory
        self._set(alpha)

    def _set(self, alpha: float) -> None:
        """Take a rate, and share it with the texts that are decoded together."""
        self.alpha = alpha
        share(alpha)


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return Goodput(settings)


build = adaptive(lengths)
