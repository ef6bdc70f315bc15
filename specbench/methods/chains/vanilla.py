"""Vanilla autoregressive decoding: one target forward per token. The baseline, and the oracle of exactness tests."""

from collections.abc import Iterator

import torch

from specbench.config import Settings as Base
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import draw
from specbench.engine.session import Session
from specbench.engine.types import Method, Round, Sampling, Stateless, Watch


class Settings(Base):
    """Nothing to set."""


class Vanilla(Stateless):
    """Decode with the target alone."""

    lossless = True
    penalised = True
    reach = 1

    def __init__(self, target: Session) -> None:
        self.target = target

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        scored = self.target.restart(prompt)
        while True:
            if sampling.greedy and (read := scored.read):
                yield Round(read.tokens)
                scored = self.target.forward(read.tokens)
            else:
                token, _ = draw(scored.logits, sampling, rng)
                yield Round(token.tolist())
                scored = self.target.forward(token)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return Vanilla(pair.session("target", watch))
