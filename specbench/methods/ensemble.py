"""Standard collaborative decoding: every model reads each token, and the next one comes from r. The baseline of CoS."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from specbench.decoding.combine import Combination
from specbench.decoding.session import Session
from specbench.decoding.types import Method, Round, Sampling, Scored, Watch
from specbench.methods.combining import Collaborating, Combining, parts
from specbench.models import Pair

# How all models are asked: sessions, a forward of one -> what each says.
Forward = Callable[[Sequence[Session], Callable[[Session], Scored]], list[Scored]]


class Settings(Combining):
    """Those of every method that combines models."""


class Ensemble(Collaborating):
    """One forward of every model a token."""

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
        rows = [self.combination.rows(one.logits, sampling) for one in scored]
        return self.combination.choose(rows, sampling, rng)


def one_by_one(sessions: Sequence[Session], ask: Callable[[Session], Scored]) -> list[Scored]:
    return [ask(session) for session in sessions]


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return Ensemble(*parts(settings, pair, watch), one_by_one)
