"""EasySpec: the draft's neighbouring layers attend at the same time, on several devices (arXiv 2502.02493). Lossless.

Within a group of layers all attention sublayers read what entered the group, so that devices can share them; the MLPs
stay in order. That is not quite what the draft model says (fuzzy drafting). After each verification the draft model
itself reads what was committed (calibration), so errors do not add up from round to round.

Here one device computes all layers in turn. Texts, drafts and accepted tokens are EasySpec's, seconds are not:
`layer_parallel.steps` counts what has to wait for one another.
"""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.eager import EagerRunner
from specbench.engine.runtimes.types import Reads, Runtime
from specbench.engine.sampling import draw
from specbench.engine.session import Session
from specbench.engine.types import Draft, Method, Sampling, Watch
from specbench.methods.chains.sps import SpS
from specbench_extras.easyspec.layer_parallel import layer_parallel


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")
    group: int = Field(ge=1, description="neighbouring layers that attend at the same time (N); 1: the draft as it is")


class Fuzzy(Runtime):
    """The eager runtime for a model and its layer-parallel twin, over one cache; `on` says which of them reads."""

    name = "eager, layer-parallel"

    def __init__(self, twin: PreTrainedModel) -> None:
        self.seconds: dict[str, float] = {}
        self.twin, self.on = twin, False

    def runner(self, model: PreTrainedModel) -> "FuzzyRunner":
        return FuzzyRunner(model, self)


class FuzzyRunner(EagerRunner):
    """One sequence of both models."""

    def __init__(self, model: PreTrainedModel, runtime: Fuzzy) -> None:
        super().__init__(model)
        self.exact, self.runtime = model, runtime

    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        self.model = self.runtime.twin if self.runtime.on else self.exact
        return super().forward(ids, keep, hidden, features, reads)


class FuzzyDrafter(ModelDrafter[Session]):
    """Drafts chains: the first token by the draft model itself, which reads the committed text; the others fuzzily."""

    def __init__(self, session: Session, runtime: Fuzzy) -> None:
        super().__init__(session)
        self.runtime = runtime

    def begin(self, prompt: list[int]) -> None:
        super().begin(prompt)
        self.calibrated = len(prompt)  # so many cached tokens were read by the draft model itself

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """K tokens by K forwards, of which the first one also reads what was committed, as it is."""
        session = self.session
        session.truncate(min(self.calibrated, len(session)))
        scored = session.catch_up(context)
        self.calibrated = len(context)
        tokens, probs = [], []
        self.runtime.on = True
        try:
            for _ in range(gamma):
                token, q = draw(scored.logits[-1:], sampling, rng)
                tokens.append(token)
                probs.append(q)
                if len(tokens) < gamma:
                    scored = session.forward(token)
        finally:
            self.runtime.on = False
        return Draft(torch.cat(tokens), None if sampling.greedy else torch.cat(probs))  # type: ignore[arg-type]


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """The draft computes at the eager runtime, in a batch alone.

    Raises UserError for a draft with another tokenizer, or with layers of an unknown form.
    """
    pair.need_one_tokenizer("easyspec reads the target's own tokens")
    model = pair.session("draft").model
    try:
        runtime = Fuzzy(layer_parallel(model, settings.group))
    except ValueError as error:
        kind = type(model).__name__
        raise UserError(
            f"easyspec cannot group the layers of {kind}: {error}; choose another draft or method"
        ) from None
    session = Session(model, "draft", watch, pair.vocabulary, runtime, pair.prefixes, home=pair.device)
    return SpS(pair.session("target", watch), FuzzyDrafter(session, runtime), settings.gamma)
