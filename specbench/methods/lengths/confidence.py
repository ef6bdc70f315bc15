"""Draft until the draft model itself is unsure of a token. Lossless.

Kim et al., arXiv 2302.07863; Liu et al., arXiv 2404.18911.
"""

from pydantic import Field

from specbench.engine.lengths import DraftToken, Lengths, SignalLengths
from specbench.engine.models.pair import Pair
from specbench.methods.chains.sps import adaptive
from specbench.methods.drafting import StopSettings


class Settings(StopSettings):
    threshold: float = Field(gt=0, lt=1, description="a draft ends after a token with a lower probability q(d)")


class Confidence(SignalLengths):
    """Stop after a token with q(d) < threshold."""

    def signal(self, token: DraftToken) -> float:
        return float(token.chance())

    def reached(self) -> bool:
        return self.signals[-1] < self.threshold


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return Confidence(settings.threshold, settings.shortest)


build = adaptive(lengths)
