"""SpS: speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). Lossless."""

from collections.abc import Iterator

import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.decoding.accept import exact
from specbench.decoding.drafters import Drafter, ModelDrafter
from specbench.decoding.session import Session
from specbench.decoding.speculate import speculate
from specbench.decoding.types import Method, Round, Sampling, Stateless, Watch
from specbench.models import Pair


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")


class SpS(Stateless):
    """Draft γ tokens, verify them by one target forward, keep those that rejection sampling passes."""

    lossless = True

    def __init__(self, target: Session, drafter: Drafter, gamma: int) -> None:
        self.target, self.drafter, self.gamma = target, drafter, gamma
        self.reach = gamma + 1

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        return speculate(self.target, self.drafter, exact, self.gamma, prompt, sampling, rng)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return SpS(pair.session("target", watch), ModelDrafter(pair.session("draft", watch)), settings.gamma)
