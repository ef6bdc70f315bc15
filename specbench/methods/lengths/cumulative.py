"""Draft until the draft model finds the drafted tokens improbable as a whole. Lossless.

As Xu et al. (2023) do, here for chains.
"""

import math

from pydantic import Field

from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.methods.chains.sps import adaptive
from specbench.methods.drafting import StopSettings
from specbench.methods.lengths.confidence import Confidence


class Settings(StopSettings):
    threshold: float = Field(gt=0, lt=1, description="a draft ends where the product of its q(d) is lower")


class Cumulative(Confidence):
    """Stop as soon as the product of all q(d) is below the threshold."""

    def reached(self) -> bool:
        return math.prod(self.signals) < self.threshold


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return Cumulative(settings.threshold, settings.shortest)


build = adaptive(lengths)
