"""Naive CoS: speculative sampling whose reference is r, and which reuses the proposer's rows (arXiv 2502.01662, 3.2).

It has no alternate proposals and no bonus token. With contrastive decoding it is Speculative Contrastive Decoding
(arXiv 2311.08981). Lossless as to r.
"""

from collections.abc import Iterator

import torch
from pydantic import Field

from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Combination, Method, Round, Sampling, Watch
from specbench.methods.collaborative.cos.collaborate import Collaboration
from specbench.methods.collaborative.cos.combining import Collaborating, Proposing, parts, proposer


class Settings(Proposing):
    """The settings of proposing methods, and the length of a draft."""

    gamma: int = Field(ge=1, description="tokens that the proposer drafts a round (γ)")


class NaiveCoS(Collaborating):
    """One model drafts γ tokens and the others score them; a draft that is accepted whole gets no bonus token."""

    def __init__(
        self, sessions: list[Session], combination: Combination, inputs: dict[str, str], gamma: int, first: int
    ) -> None:
        super().__init__(sessions, combination, inputs)
        self.gamma, self.first = gamma, first
        self.reach = gamma + 1

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        group = Collaboration(self.sessions, self.combination)
        yield Round([group.begin(prompt, sampling, rng)])
        while True:
            for _ in range(self.gamma):
                group.propose(self.first)
            self.score(group)
            verdict = group.judge()
            assert verdict is not None
            yield Round(verdict.committed, verdict)

    def score(self, group: Collaboration) -> None:
        """Have all models but the proposer score the pending tokens."""
        for model in range(len(self.sessions)):
            if model != self.first:
                group.score(model)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return NaiveCoS(*parts(settings, pair, watch), settings.gamma, proposer(settings.proposer, pair))
