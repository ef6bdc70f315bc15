"""Draft while another token promises more tokens per time. Lossless.

SpecServe's step-level estimate of efficiency (arXiv 2503.05096), here as a rule for one text.
"""

from itertools import accumulate
from operator import mul

from pydantic import Field

from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.methods.chains.sps import adaptive
from specbench.methods.drafting import StopSettings
from specbench.methods.lengths.confidence import Confidence


class Settings(StopSettings):
    draft: float = Field(gt=0, description="time of a draft forward, over a target forward of one token")
    token: float = Field(ge=0, description="time of each further token of a target forward, over that of one token")
    threshold: float = Field(
        gt=0, description="a draft ends where the efficiency with another token is lower than this times that without"
    )


class Efficiency(Confidence):
    """Stop where the predicted efficiency falls.

    A token is taken to be accepted with probability q(d), so s tokens promise E(s) = 1 + Σ Π q(d) committed ones, in
    the time T(s) = 1 + s (draft + token) of target forwards. The next token is taken to be as likely as the last one.
    The draft ends if E(s + 1) / T(s + 1) is lower than `threshold` times E(s) / T(s).
    """

    def __init__(self, cost: float, threshold: float, shortest: int) -> None:
        super().__init__(threshold, shortest)
        self.cost = cost

    def reached(self) -> bool:
        return self.efficiency([*self.signals, self.signals[-1]]) < self.threshold * self.efficiency(self.signals)

    def efficiency(self, chances: list[float]) -> float:
        """Expected tokens over time of a draft whose tokens have these probabilities."""
        return (1 + sum(accumulate(chances, mul))) / (1 + self.cost * len(chances))


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return Efficiency(settings.draft + settings.token, settings.threshold, settings.shortest)


build = adaptive(lengths)
