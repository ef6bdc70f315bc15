"""Draft lengths that keep the share of accepted tokens at a target: one more above it, one less below. Lossless.

vLLM, eagle_dynamic (pull requests 26495 and 26504, not merged).
"""

from collections import deque

from pydantic import Field

from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.types import Verdict
from specbench.methods.chains.sps import adaptive
from specbench.methods.drafting import LengthSettings


class Settings(LengthSettings):
    target: float = Field(gt=0, lt=1, description="share of a text's draft tokens that should be accepted")
    slack: float = Field(ge=0, lt=1, description="how far the share may be off before the length changes")
    window: int = Field(ge=1, description="rounds whose shares are averaged")
    fewest: int = Field(ge=1, description="rounds of a text before its length changes")


class TargetAcceptance(Lengths):
    """`longest` tokens at first; after a round one more or one less, at least 1, by the mean share of the last ones."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def begin(self, prompt: list[int]) -> None:
        self.length = self.settings.longest
        self.shares = deque[float](maxlen=self.settings.window)

    def most(self, gamma: int, context: int) -> int:
        return min(gamma, self.length)

    def observe(self, verdict: Verdict) -> None:
        given = self.settings
        if verdict.drafted:
            self.shares.append(verdict.accepted / len(verdict.drafted))
        if len(self.shares) < given.fewest:
            return
        mean = sum(self.shares) / len(self.shares)
        if mean >= given.target + given.slack:
            self.length = min(given.longest, self.length + 1)
        elif mean <= given.target - given.slack:
            self.length = max(1, self.length - 1)


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return TargetAcceptance(settings)


build = adaptive(lengths)
