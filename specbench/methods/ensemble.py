"""Standard collaborative decoding: every model reads each token, and the next one comes from r. The baseline of CoS."""

from collections.abc import Callable, Iterator, Sequence

import torch

from specbench.decoding.combine import Combination
from specbench.decoding.session import Session
from specbench.decoding.types import Method, Round, Sampling, Scored, Watch
from specbench.methods.combining import Collaborating, Combining, parts
from specbench.models import Pair

# How all models read one token: sessions, token [1] -> what each says.
Forward = Callable[[Sequence[Session], torch.Tensor], list[Scored]]


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
        scored = [session.restart(prompt) for session in self.sessions]
        while True:
            token = self._choose(scored, sampling, rng)
            yield Round(token.tolist())
            scored = self.forward(self.sessions, token)

    @torch.inference_mode()
    def _choose(self, scored: list[Scored], sampling: Sampling, rng: torch.Generator) -> torch.Tensor:
        rows = [self.combination.rows(one.logits, sampling) for one in scored]
        return self.combination.choose(rows, sampling, rng)


def one_by_one(sessions: Sequence[Session], token: torch.Tensor) -> list[Scored]:
    return [session.forward(token) for session in sessions]


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return Ensemble(*parts(settings, pair, watch), one_by_one)
