"""SpS: speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). Lossless."""

from collections.abc import Callable
from typing import Any

from specbench.engine.accept import exact
from specbench.engine.drafters import Drafter, ModelDrafter
from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Method, Watch
from specbench.methods.drafting import DraftedMethod, DraftSettings, model_drafter


class Settings(DraftSettings):
    """The settings of every method that drafts from a model."""


class SpS(DraftedMethod):
    """Draft up to γ tokens, score them by one target forward, keep those that pass rejection sampling."""

    lossless = True
    accept = staticmethod(exact)

    def __init__(self, target: Session, drafter: Drafter, gamma: int) -> None:
        self.target, self.drafter, self.gamma = target, drafter, gamma
        self.reach = gamma + 1


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return SpS(pair.session("target", watch), model_drafter(settings, pair, watch), settings.gamma)


def adaptive(lengths: Callable[[Any, Pair], Lengths]) -> Callable[[Any, Pair, Watch], Method]:
    """`build` of a length method: speculative sampling whose draft lengths its policy chooses."""

    def build(settings: Any, pair: Pair, watch: Watch) -> Method:
        policy = lengths(settings, pair)
        eos_ids = pair.eos_ids if settings.stop_at_eos else frozenset()
        drafter = ModelDrafter(pair.session("draft", watch), policy, eos_ids)
        return SpS(pair.session("target", watch), drafter, settings.longest)

    return build
