"""Speculative sampling whose target is standard collaborative decoding: the SD of CoS (arXiv 2502.01662, 4.1).

The combined model does not reuse the draft's forwards, so the proposer scores its own draft again. Lossless as to r.
"""

from specbench.engine.models.pair import Pair
from specbench.engine.types import Method, Watch
from specbench.methods.collaborative.cos.collaborate import Collaboration
from specbench.methods.collaborative.cos.combining import parts, proposer
from specbench.methods.collaborative.cos.cos_naive import NaiveCoS, Settings

__all__ = ["Settings", "build"]


class CombinedTarget(NaiveCoS):
    """All models score γ + 1 positions; the bonus token is drawn from r."""

    def score(self, group: Collaboration) -> None:
        group.forget(self.first)
        for model in range(len(self.sessions)):
            group.score(model, bonus=True)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return CombinedTarget(*parts(settings, pair, watch), settings.gamma, proposer(settings.proposer, pair))
