"""Speculative sampling whose verdicts are drawn, for models without sense: what an engine costs at an acceptance rate.

SYNTHETIC: its texts are nobody's, and nothing of what it decodes may be scored or compared.
"""

from collections.abc import Iterator
from functools import partial

import torch

from specbench.decoding.accept import weigh
from specbench.decoding.drafters import Drafter
from specbench.decoding.session import Session
from specbench.decoding.speculate import speculate
from specbench.decoding.types import Draft, Round, Sampling, Scored, Verdict
from specbench.methods.drafting import Drafted


class Forced(Drafted):
    """Drafts, target forwards and the work of the exact rule are SpS's own; only which tokens pass is drawn."""

    lossless = False

    def __init__(self, target: Session, drafter: Drafter, gamma: int, rate: float) -> None:
        self.target, self.drafter, self.gamma, self.rate = target, drafter, gamma, rate
        self.reach = gamma + 1

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        accept = partial(forced, rate=self.rate)
        return speculate(self.target, self.drafter, accept, self.gamma, prompt, sampling, rng)


def forced(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator, rate: float) -> Verdict:
    """Accept each token with probability `rate`, up to the first that does not pass.

    The exact test is done as ever and not looked at; the draws cross to the host in the same copy.
    """
    drawn = torch.rand(draft.tokens.shape[0], generator=rng, device=draft.tokens.device) < rate
    weighed = weigh(draft, scored, sampling, rng, also=(drawn,))
    (passed,) = weighed.also
    return weighed.verdict(next((i for i, one in enumerate(passed) if not one), len(passed)))


def tokens_a_round(rate: float, gamma: int) -> float:
    """What a round is expected to commit: 1 + rate + … + rate^γ (Leviathan et al., arXiv 2211.17192, Eq. 1)."""
    return sum(rate**i for i in range(gamma + 1))
