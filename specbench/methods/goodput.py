"""Draft lengths that promise the most tokens a second for the texts that are decoded together. Lossless.

SmartSpec, later TurboSpec (Liu et al., arXiv 2406.14066): k = argmax of expected tokens over the time of a step.
"""

from pydantic import Field

from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.batched import texts_together
from specbench.engine.types import Verdict
from specbench.methods.drafting import LengthSettings
from specbench.methods.sps import adaptive


class Settings(LengthSettings):
    token: float = Field(ge=0, description="time of each further token of a target forward, over that of one token")
    draft: float = Field(gt=0, description="time of a draft forward of one token, over the target's")
    draft_token: float = Field(ge=0, description="time of each further token of it, over the target's forward")
    expected: float = Field(ge=0, lt=1, description="acceptance rate that a text begins with (α)")
    memory: float = Field(ge=1, description="verified draft tokens that the moving average of α reaches back")


class Goodput(Lengths):
    """Maximise (1 - α^(k+1)) / (1 - α) over the time of a step that drafts k tokens for each of n texts.

    A step takes 1 + token · (n (k + 1) - 1) + k · (draft + draft_token · (n - 1)) target forwards. α is a moving
    average over the text's verified draft tokens, and returns to `expected` while nothing is drafted. Each text takes
    the others to be like itself, where SmartSpec adds up the goodput of all.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def begin(self, prompt: list[int]) -> None:
        self.alpha = self.settings.expected

    def most(self, gamma: int, context: int) -> int:
        texts = texts_together()
        return max(range(gamma + 1), key=lambda k: self.tokens(k) / self.time(k, texts))

    def tokens(self, k: int) -> float:
        """The expected tokens of a round with k draft tokens (Leviathan et al., Eq. 1)."""
        return sum(self.alpha**i for i in range(k + 1))

    def time(self, k: int, texts: int) -> float:
        """The time of a step, in target forwards of one token."""
        given = self.settings
        verify = 1 + given.token * (texts * (k + 1) - 1)
        return verify + k * (given.draft + given.draft_token * (texts - 1))

    def observe(self, verdict: Verdict) -> None:
        rejected = verdict.accepted < len(verdict.drafted)
        outcomes = [1.0] * verdict.accepted + [0.0] * rejected if verdict.drafted else [self.settings.expected]
        for outcome in outcomes:
            self.alpha += (outcome - self.alpha) / self.settings.memory


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return Goodput(settings)


build = adaptive(lengths)
