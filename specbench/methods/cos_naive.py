"""Naive CoS: speculative sampling whose reference is r, with the proposer's rows used again (arXiv 2502.01662, 3.2).

Without alternate proposals and without a bonus token; in contrastive decoding this is Speculative Contrastive Decoding
(arXiv 2311.08981). Lossless as to r.
"""

from collections.abc import Iterator

import torch
from pydantic import Field

from specbench.decoding.collaborate import Collaboration
from specbench.decoding.combine import Combination
from specbench.decoding.session import Session
from specbench.decoding.types import Method, Round, Sampling, Watch
from specbench.methods.combining import Collaborating, Proposing, parts, proposer
from specbench.models import Pair


class Settings(Proposing):
    """Those of proposing methods."""

    gamma: int = Field(ge=1, description="tokens that the proposer drafts a round (γ)")


class NaiveCoS(Collaborating):
    """One model drafts γ tokens, the others score them; nothing follows a draft that was accepted whole."""

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
        """Have the pending tokens scored by the models that have not read them; the proposer is not asked again."""
        for model in range(len(self.sessions)):
            if model != self.first:
                group.score(model)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return NaiveCoS(*parts(settings, pair, watch), settings.gamma, proposer(settings.proposer, pair))
