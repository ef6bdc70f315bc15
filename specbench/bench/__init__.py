"""`specbench bench`: this engine on every runtime beside others' engines, in one process, interleaved by document.

Also what the instruments cost, the share of decode time outside forwards, forward times by width, and, for sizes whose
weights are not here, random models with a forced acceptance rate (synthetic).
"""

from specbench.bench.engines import CONTEXT, WIDTHS, forward_times
from specbench.bench.prompts import FAMILIES, bundled_prompts

__all__ = ["CONTEXT", "FAMILIES", "WIDTHS", "bundled_prompts", "forward_times"]
