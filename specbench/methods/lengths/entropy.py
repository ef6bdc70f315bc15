"""Draft until the distribution that a token is drawn from is too broad. Lossless."""

from pydantic import Field

from specbench.engine.lengths import DraftToken, Lengths, SignalLengths
from specbench.engine.models.pair import Pair
from specbench.methods.chains.sps import adaptive
from specbench.methods.drafting import StopSettings


class Settings(StopSettings):
    threshold: float = Field(gt=0, description="a draft ends after a token drawn with more entropy, in nats")


class Entropy(SignalLengths):
    """Stop after a token drawn from a distribution with H(q) > threshold, in nats."""

    def signal(self, token: DraftToken) -> float:
        return token.entropy()

    def reached(self) -> bool:
        return self.signals[-1] > self.threshold


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return Entropy(settings.threshold, settings.shortest)


build = adaptive(lengths)
