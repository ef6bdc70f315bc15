"""SpS: speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). Lossless."""

from collections.abc import Iterator

import torch

from specbench.decoding.accept import exact
from specbench.decoding.drafters import Drafter, ModelDrafter
from specbench.decoding.lengths import Lengths
from specbench.decoding.session import Session
from specbench.decoding.speculate import speculate
from specbench.decoding.types import Method, Round, Sampling, Watch
from specbench.methods.drafting import Bounded, Drafted, Drafting, model_drafter
from specbench.models import Pair


class Settings(Drafting):
    """Those of every method that drafts from a model."""


class SpS(Drafted):
    """Draft up to γ tokens, verify them by one target forward, keep those that rejection sampling passes."""

    lossless = True

    def __init__(self, target: Session, drafter: Drafter, gamma: int) -> None:
        self.target, self.drafter, self.gamma = target, drafter, gamma
        self.reach = gamma + 1

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        return speculate(self.target, self.drafter, exact, self.gamma, prompt, sampling, rng)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return SpS(pair.session("target", watch), model_drafter(settings, pair, watch), settings.gamma)


def adaptive(settings: Bounded, lengths: Lengths, pair: Pair, watch: Watch) -> Method:
    """Speculative sampling whose draft lengths a policy chooses."""
    drafter = ModelDrafter(pair.session("draft", watch), lengths, pair.eos_ids if settings.stop_at_eos else frozenset())
    return SpS(pair.session("target", watch), drafter, settings.longest)
