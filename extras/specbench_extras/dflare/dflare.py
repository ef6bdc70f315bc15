"""DFlare: a block drafter each of whose layers mixes the target's layers by weights of its own (arXiv 2606.02091).

Lossless. It decodes as DFlash does; what differs is in the head.
"""

from specbench.engine.models.pair import Pair
from specbench.engine.types import Method, Watch
from specbench.methods.blocks import dflash
from specbench.methods.blocks.dflash import MIXED, Settings

__all__ = ["Settings", "build"]


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """As `dflash.build`, with a mixed head."""
    return dflash.build(settings, pair, watch, MIXED)
