"""Methods whose draft learns from text to text: they are served texts to their ends, and their weights compared."""

import torch
from gates import DEVICE

from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.types import Sampling


def serve(method, prompt, count=12, seed=0, sampling=Sampling()):  # noqa: B008
    """Decode a text to its end, from which the method learns; returns its tokens."""
    ending = Ending(Limits(count, frozenset(), ()), str)
    for _ in decode_text(method, list(prompt), sampling, torch.Generator(DEVICE).manual_seed(seed), ending):
        pass
    return ending.tokens


def weights(method) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in method.learner.parameters]


def equal(left, right) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


class Serving:
    """The method as a server uses it: the end of a text is told before the next one begins."""

    def __init__(self, method) -> None:
        self.method, self.last = method, None

    def rounds(self, prompt, sampling, rng):
        if self.last:
            self.method.ended(self.last)
        for step in self.method.rounds(prompt, sampling, rng):
            self.last = step
            yield step
