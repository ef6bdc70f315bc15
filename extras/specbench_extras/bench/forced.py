"""Speculative sampling with random verdicts, to measure an engine at a given acceptance rate on random models.

SYNTHETIC: its texts mean nothing, and must not be scored or compared.
"""

from collections.abc import Iterator
from functools import partial

import torch

from specbench.engine.accept import weigh
from specbench.engine.drafters import Drafter
from specbench.engine.session import Session
from specbench.engine.speculate import speculate
from specbench.engine.types import Draft, Round, Sampling, Scored, Verdict
from specbench.methods.drafting import DraftedMethod


class Forced(DraftedMethod):
    """SpS with its drafts, target forwards and the work of the exact rule; only which tokens pass is random."""

    lossless = False

    def __init__(self, target: Session, drafter: Drafter, gamma: int, rate: float) -> None:
        self.target, self.drafter, self.gamma, self.rate = target, drafter, gamma, rate
        self.reach = gamma + 1

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        accept = partial(forced, rate=self.rate)
        return speculate(self.target, self.drafter, accept, self.gamma, prompt, sampling, rng)


def forced(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator, rate: float) -> Verdict:
    """Accept each token with probability `rate`, up to the first that does not pass.

    The exact test is done as usual and ignored; the draws cross to the host in the same copy.
    """
    drawn = torch.rand(draft.tokens.shape[0], generator=rng, device=draft.tokens.device) < rate
    weighed = weigh(draft, scored, sampling, rng, columns=(drawn,))
    (passed,) = weighed.columns
    return weighed.verdict(next((i for i, passes in enumerate(passed) if not passes), len(passed)))


def tokens_a_round(rate: float, gamma: int) -> float:
    """The expected tokens of a round: 1 + rate + … + rate^γ (Leviathan et al., arXiv 2211.17192, Eq. 1)."""
    return sum(rate**i for i in range(gamma + 1))
