"""Draft lengths of transformers' assisted generation: longer behind a draft that stood whole, else shorter.

Lossless.
"""

from pydantic import Field

from specbench.decoding.lengths import Heuristic, Lengths
from specbench.decoding.types import Method, Watch
from specbench.methods.drafting import Bounded
from specbench.methods.sps import adaptive
from specbench.models import Pair


class Settings(Bounded):
    first: int = Field(ge=1, description="draft tokens of a text's first round; then +2 if all stood, else -1")


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return Heuristic(settings.first)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return adaptive(settings, lengths(settings, pair), pair, watch)
