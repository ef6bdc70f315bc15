"""The draft lengths of transformers' assisted generation: longer after a draft that was accepted whole, else shorter.

Lossless.
"""

from pydantic import Field

from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.types import Verdict
from specbench.methods.chains.sps import adaptive
from specbench.methods.drafting import LengthSettings


class Settings(LengthSettings):
    first: int = Field(ge=1, description="draft tokens of a text's first round; then +2 if all stood, else -1")


class Heuristic(Lengths):
    """`first` tokens, then +2 after a round whose tokens all stood, else -1; at least 1.

    The length starts over with each text. (transformers keeps it on the draft model, so it leaks from text to text.)
    """

    def __init__(self, first: int) -> None:
        self.first = first

    def begin(self, prompt: list[int]) -> None:
        self.length = self.first

    def most(self, gamma: int, context: int) -> int:
        return min(gamma, self.length)

    def observe(self, verdict: Verdict) -> None:
        all_stood = verdict.accepted == len(verdict.drafted)
        self.length = self.length + 2 if all_stood else max(1, self.length - 1)


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return Heuristic(settings.first)


build = adaptive(lengths)
