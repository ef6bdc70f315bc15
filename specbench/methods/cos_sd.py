"""Speculative sampling with standard collaborative decoding as its target: the SD of CoS (arXiv 2502.01662, 4.1).

The combined model knows nothing of the draft's forwards, so the proposer scores its own draft anew. Lossless as to r.
"""

from specbench.decoding.collaborate import Collaboration
from specbench.decoding.types import Method, Watch
from specbench.methods.combining import parts, proposer
from specbench.methods.cos_naive import NaiveCoS, Settings
from specbench.models import Pair

__all__ = ["Settings", "build"]


class CombinedTarget(NaiveCoS):
    """All models score γ + 1 positions; the bonus token comes from r."""

    def score(self, group: Collaboration) -> None:
        group.forget(self.first)
        for model in range(len(self.sessions)):
            group.score(model, behind=True)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return CombinedTarget(*parts(settings, pair, watch), settings.gamma, proposer(settings.proposer, pair))
