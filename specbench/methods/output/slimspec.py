"""SlimSpec: speculative sampling whose draft has an output layer of low rank (arXiv 2605.10453). Lossless.

The paper trains the drafter with this layer. Here the layer is the best approximation of the draft's own output layer,
by its singular values. The setting `output=slimspec` does the same in sps, lossy, fly, reflective, csd and judge.
"""

from pydantic import Field, StrictFloat, StrictInt

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.models.draft_output import Output, output_layer, slim
from specbench.engine.models.pair import Pair
from specbench.engine.types import Method, Watch
from specbench.methods.chains.sps import SpS
from specbench.methods.drafting import lighter_drafter, number_or_share


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")
    rank: StrictInt | StrictFloat = Field(
        description="rank of the output layer: a number, or a share of the draft's hidden width (with a point: 0.25)"
    )

    _some = number_or_share("rank")


def output(settings: Settings, pair: Pair) -> Output:
    """The pair's draft model with an output layer of low rank. Raises UserError if it cannot have one."""
    draft = pair.session("draft").model  # raises UserError for a pair without a draft model
    try:
        width = output_layer(draft).weight.shape[1]
        rank = settings.rank if isinstance(settings.rank, int) else max(1, round(settings.rank * width))
        return Output(slim(draft, rank), {})
    except ValueError as error:
        raise UserError(f"slimspec: {error}; choose another draft, or another rank") from None


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    layer = pair.runtime.once(("slimspec", settings.model_dump_json()), lambda: output(settings, pair))
    return SpS(pair.session("target", watch), lighter_drafter(layer, pair, watch), settings.gamma)
