"""Draft lengths by the number of texts that are decoded together, as vLLM's schedule has them. Lossless.

vLLM, num_speculative_tokens_per_batch_size (pull request 32374).
"""

import re
from collections.abc import Mapping

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.batched import texts_together
from specbench.methods.chains.sps import adaptive
from specbench.methods.drafting import LengthSettings


class Settings(LengthSettings):
    schedule: dict[str, int] = Field(
        min_length=1, description="draft tokens (k) by texts that are decoded together, such as {1-4: 6, 5-16: 2}"
    )

    @field_validator("schedule")
    @classmethod
    def fits(cls, schedule: dict[str, int]) -> dict[str, int]:
        last = 0
        for texts, k in schedule.items():
            first, end = bounds(texts)
            if first <= last or end < first or k < 0:
                raise PydanticCustomError(
                    "schedule", "needs ranges that rise, such as {1-4: 6, 5-16: 2}, and no k below 0"
                )
            last = end
        return schedule


def bounds(texts: str) -> tuple[int, int]:
    """The first and the last number of a range such as 5-16; (0, 0) if it is none."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", texts.strip())
    return (int(match[1]), int(match[2] or match[1])) if match else (0, 0)


class ByBatch(Lengths):
    """The k of the range that the number of texts is in; between two ranges and after the last, that of the one before.

    Before the first range, as vLLM, the most tokens that may be drafted.
    """

    def __init__(self, schedule: Mapping[str, int]) -> None:
        self.firsts = [(bounds(texts)[0], k) for texts, k in schedule.items()]

    def most(self, gamma: int, context: int) -> int:
        begun = [k for first, k in self.firsts if first <= texts_together()]
        return min(gamma, begun[-1]) if begun else gamma


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return ByBatch(settings.schedule)


build = adaptive(lengths)
