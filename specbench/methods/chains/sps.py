"""SpS: speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). Lossless."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

from specbench.engine.accept import Accept, exact
from specbench.engine.drafters import Drafter, ModelDrafter
from specbench.engine.joint import block
from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Method, Watch
from specbench.methods.drafting import DraftedMethod, DraftSettings, model_drafter
from specbench.methods.rules import TypicalSettings, is_exact


class Settings(DraftSettings, TypicalSettings):
    rule: Literal["token", "block", "typical"] = Field(
        default="token", description="tokens are tested one by one, as a block, or for what is typical (lossy at T > 0)"
    )


class SpS(DraftedMethod):
    """Draft up to γ tokens, score them by one target forward, keep those that pass rejection sampling.

    With `block` for `accept`, block verification (Sun et al., arXiv 2403.10444); with `Typical`, Medusa's rule.
    """

    def __init__(self, target: Session, drafter: Drafter, gamma: int, accept: Accept = exact) -> None:
        self.target, self.drafter, self.gamma, self.accept = target, drafter, gamma, accept
        self.reach, self.lossless = gamma + 1, is_exact(accept)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    rules: dict[str, Accept] = {"token": exact, "block": block, "typical": settings.typical()}
    target, drafter = pair.session("target", watch), model_drafter(settings, pair, watch)
    return SpS(target, drafter, settings.gamma, rules[settings.rule])


def adaptive(lengths: Callable[[Any, Pair], Lengths]) -> Callable[[Any, Pair, Watch], Method]:
    """`build` of a length method: speculative sampling whose draft lengths its policy chooses."""

    def build(settings: Any, pair: Pair, watch: Watch) -> Method:
        policy = lengths(settings, pair)
        eos_ids = pair.eos_ids if settings.stop_at_eos else frozenset()
        drafter = ModelDrafter(pair.session("draft", watch), policy, eos_ids)
        return SpS(pair.session("target", watch), drafter, settings.longest)

    return build
