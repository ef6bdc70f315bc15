"""Draft until the draft itself is unsure of a token (Kim et al., arXiv 2302.07863; Liu et al., arXiv 2404.18911).

Lossless.
"""

from pydantic import Field

from specbench.decoding.lengths import Confidence, Lengths
from specbench.decoding.types import Method, Watch
from specbench.methods.drafting import Stopping
from specbench.methods.sps import adaptive
from specbench.models import Pair


class Settings(Stopping):
    threshold: float = Field(gt=0, lt=1, description="a draft ends behind a token with less probability q(d)")


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return Confidence(settings.threshold, settings.shortest)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return adaptive(settings, lengths(settings, pair), pair, watch)
