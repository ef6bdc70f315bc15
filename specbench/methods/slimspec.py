"""SlimSpec: speculative sampling whose draft has an output layer of low rank (arXiv 2605.10453). Lossless.

The paper trains the drafter with it; here the layer is the best approximation of the draft's own, by its singular
values. As a setting, `output=slimspec` does the same under sps, lossy, fly, reflective, csd and judge.
"""

from pydantic import Field, StrictFloat, StrictInt, field_validator
from pydantic_core import PydanticCustomError

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.decoding.draft_output import Output, output_layer, slim
from specbench.decoding.types import Method, Watch
from specbench.methods.drafting import lighter_drafter
from specbench.methods.sps import SpS
from specbench.models import Pair


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")
    rank: StrictInt | StrictFloat = Field(
        description="rank of the output layer: a number, or a share of the draft's hidden width (with a point: 0.25)"
    )

    @field_validator("rank")
    @classmethod
    def some(cls, rank: int | float) -> int | float:
        if rank < 1 if isinstance(rank, int) else not 0 < rank <= 1:
            raise PydanticCustomError("range", f"{rank} is no number from 1 on, and no share up to 1.0")
        return rank


def output(settings: Settings, pair: Pair) -> Output:
    """The pair's draft model with an output layer of low rank. Raises UserError where it cannot have one."""
    draft = pair.session("draft").model  # a pair without a draft model is refused in its words
    try:
        width = output_layer(draft).weight.shape[1]
        rank = settings.rank if isinstance(settings.rank, int) else max(1, round(settings.rank * width))
        return Output(slim(draft, rank), {})
    except ValueError as error:
        raise UserError(f"slimspec: {error}; choose another draft, or another rank") from None


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return SpS(pair.session("target", watch), lighter_drafter(output(settings, pair), pair, watch), settings.gamma)
