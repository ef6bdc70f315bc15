"""Draft until the distribution of a token is too broad. Lossless."""

from pydantic import Field

from specbench.decoding.lengths import Entropy, Lengths
from specbench.decoding.types import Method, Watch
from specbench.methods.drafting import Stopping
from specbench.methods.sps import adaptive
from specbench.models import Pair


class Settings(Stopping):
    threshold: float = Field(gt=0, description="a draft ends behind a token drawn from more entropy, in nats")


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return Entropy(settings.threshold, settings.shortest)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return adaptive(settings, lengths(settings, pair), pair, watch)
