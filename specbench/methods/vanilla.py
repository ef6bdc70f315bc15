"""Vanilla autoregressive decoding: one target forward a token. The baseline, and the oracle of the exactness tests."""

from collections.abc import Iterator

import torch

from specbench.config import Settings as Base
from specbench.decoding.sampling import draw
from specbench.decoding.session import Session
from specbench.decoding.types import Method, Round, Sampling, Stateless, Watch
from specbench.models import Pair


class Settings(Base):
    """Nothing to set."""


class Vanilla(Stateless):
    lossless = True
    reach = 1

    def __init__(self, target: Session) -> None:
        self.target = target

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        scored = self.target.restart(prompt)
        while True:
            token, _ = draw(scored.logits, sampling, rng)
            yield Round(token.tolist())
            scored = self.target.forward(token)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return Vanilla(pair.session("target", watch))
