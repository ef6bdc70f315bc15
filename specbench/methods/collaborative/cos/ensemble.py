"""Standard collaborative decoding: every model reads each token, and the next one comes from r. The baseline of CoS."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Combination, Method, Round, Sampling, Scored, Watch
from specbench.methods.collaborative.cos.combining import Collaborating, Combining, parts

# Runs a forward on all models: sessions, the forward of one session -> the results of all.
Forward = Callable[[Sequence[Session], Callable[[Session], Scored]], list[Scored]]


class Settings(Combining):
    """The settings of every method that combines models."""


class Ensemble(Collaborating):
    """One forward of every model per token."""

    def __init__(
        self, sessions: list[Session], combination: Combination, inputs: dict[str, str], forward: Forward
    ) -> None:
        super().__init__(sessions, combination, inputs)
        self.forward = forward

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        scored = self.forward(self.sessions, lambda session: session.restart(prompt))
        while True:
            token = self._choose(scored, sampling, rng)
            yield Round(token.tolist())
            scored = self.forward(self.sessions, partial(Session.forward, tokens=token))

    @torch.inference_mode()
    def _choose(self, scored: list[Scored], sampling: Sampling, rng: torch.Generator) -> torch.Tensor:
        rows = [self.combination.rows(result.logits, sampling) for result in scored]
        return self.combination.choose(rows, sampling, rng)


def one_by_one(sessions: Sequence[Session], forward: Callable[[Session], Scored]) -> list[Scored]:
    return [forward(session) for session in sessions]


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return Ensemble(*parts(settings, pair, watch), one_by_one)
