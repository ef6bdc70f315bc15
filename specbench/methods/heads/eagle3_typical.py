"""EAGLE-3's trees under Medusa's typical acceptance: the longest path whose tokens the target finds typical.

The rule is `engine.typical`, exact at temperature 0. That of other methods is their setting `rule`.
"""

from specbench.engine.models.eagle_head import layers_read
from specbench.engine.models.pair import Pair
from specbench.engine.types import Method, Watch
from specbench.methods.heads import eagle3
from specbench.methods.heads.eagle3 import Eagle3, EagleDrafter
from specbench.methods.heads.eagle3 import Settings as Base
from specbench.methods.rules import TypicalSettings


class Settings(Base, TypicalSettings):
    """Those of eagle3, and of the rule."""


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for a head that does not fit it."""
    head, hashes = eagle3.loaded(settings.head, pair)
    session = eagle3.head_session(head, pair, watch)
    sizes = settings.total_tokens, settings.top_k, settings.depth
    drafter = EagleDrafter(head, session, layers_read(pair.models["target"]), *sizes)
    return Eagle3(pair.session("target", watch), drafter, hashes, settings.typical())
