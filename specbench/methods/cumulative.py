"""Draft until the tokens together are improbable to the draft itself (as Xu et al., 2023, for chains). Lossless."""

from pydantic import Field

from specbench.decoding.lengths import Cumulative, Lengths
from specbench.decoding.types import Method, Watch
from specbench.methods.drafting import Stopping
from specbench.methods.sps import adaptive
from specbench.models import Pair


class Settings(Stopping):
    threshold: float = Field(gt=0, lt=1, description="a draft ends where the product of its q(d) is less")


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return Cumulative(settings.threshold, settings.shortest)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return adaptive(settings, lengths(settings, pair), pair, watch)
