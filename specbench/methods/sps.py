"""SpS: speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). Lossless."""

from collections.abc import Iterator

import torch

from specbench.engine.accept import exact
from specbench.engine.drafters import Drafter, ModelDrafter
from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.speculate import speculate
from specbench.engine.types import Method, Round, Sampling, Watch
from specbench.methods.drafting import DraftedMethod, DraftSettings, LengthSettings, model_drafter


class Settings(DraftSettings):
    """The settings of every method that drafts from a model."""


class SpS(DraftedMethod):
    """Draft up to γ tokens, score them by one target forward, keep those that pass rejection sampling."""

    lossless = True

    def __init__(self, target: Session, drafter: Drafter, gamma: int) -> None:
        self.target, self.drafter, self.gamma = target, drafter, gamma
        self.reach = gamma + 1

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        return speculate(self.target, self.drafter, exact, self.gamma, prompt, sampling, rng)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return SpS(pair.session("target", watch), model_drafter(settings, pair, watch), settings.gamma)


def adaptive(settings: LengthSettings, lengths: Lengths, pair: Pair, watch: Watch) -> Method:
    """Speculative sampling whose draft lengths a policy chooses: the method of confidence.py, entropy.py and others."""
    drafter = ModelDrafter(pair.session("draft", watch), lengths, pair.eos_ids if settings.stop_at_eos else frozenset())
    return SpS(pair.session("target", watch), drafter, settings.longest)
