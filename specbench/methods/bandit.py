"""A draft length for each round by the draft's confidence and entropy, learned while decoding (as SpecKV). Lossless."""

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from specbench.decoding.bandit import Bandit
from specbench.decoding.lengths import Lengths
from specbench.decoding.types import Method, Watch
from specbench.methods.drafting import Bounded
from specbench.methods.sps import adaptive
from specbench.models import Pair


class Settings(Bounded):
    choices: tuple[int, ...] = Field(min_length=1, description="the lengths to choose from")
    draft_cost: float = Field(gt=0, description="time of a draft forward over a target forward (c)")
    alpha: float = Field(ge=0, description="standard deviations added to what a length is expected to bring; 0: none")

    @field_validator("choices")
    @classmethod
    def fits(cls, choices: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        longest: int = info.data.get("longest", max(choices))
        if min(choices) < 1 or len(set(choices)) < len(choices) or max(choices) > longest:
            raise PydanticCustomError("choices", f"must be different lengths from 1 to longest ({longest})")
        return choices


def lengths(settings: Settings, pair: Pair) -> Lengths:
    return Bandit(settings.choices, settings.draft_cost, settings.alpha)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return adaptive(settings, lengths(settings, pair), pair, watch)
