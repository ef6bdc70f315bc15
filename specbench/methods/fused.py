"""Several draft models propose together: each token is that of the surest one. Lossless.

CoSine (arXiv 2503.10325), its confidence-based fusion of tokens: all drafters go on from the token of the one that is
surest. The drafters are the pair's draft model and its further members. The paper's full text was not available; its
routing of requests, its trees of alternatives and its pipeline over several machines are not here.
"""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from specbench.config import Settings as Base
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Method, Scored, Watch
from specbench.methods.sps import SpS


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")


class Fused(Session):
    """A sequence that several models read: its logits after each token are those of the model that is surest there.

    Which model that is depends on the text before alone, so a token drawn from its distribution is a proper draft.
    """

    others: Sequence[Session] = ()  # the further models' sequences, always of the same tokens

    def forward(
        self,
        tokens: Sequence[int] | Tensor,
        keep: int = 0,
        parents: Sequence[int] | None = None,
        hidden: Sequence[int] = (),
        features: Tensor | None = None,
        together: int = 0,
    ) -> Scored:
        """As of one model, for chains; hidden states are the first model's."""
        first = super().forward(tokens, keep, parents, hidden, features, together)
        logits = [first.logits, *(other.forward(tokens, keep).logits for other in self.others)]
        return first._replace(logits=surest(torch.stack(logits)))

    def truncate(self, length: int) -> None:
        super().truncate(length)
        for other in self.others:
            other.truncate(length)


def surest(logits: Tensor) -> Tensor:
    """Of the logits [d, n, V] of d models those [n, V] of the model with the highest probability, the first on ties."""
    at = (logits.amax(-1) - logits.logsumexp(-1)).argmax(0)
    return logits.gather(0, at[None, :, None].expand(1, *logits.shape[1:]))[0]


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Raises UserError for a draft model with another tokenizer."""
    target, alone = pair.session("target", watch), pair.session("draft", watch)
    pair.need_one_tokenizer("drafters that go on from each other's tokens need one vocabulary")
    draft = Fused(alone.model, "draft", watch, pair.vocabulary, pair.runtime, pair.prefixes)
    draft.others = [pair.session(role, watch) for role in pair.extra_members]
    return SpS(target, ModelDrafter(draft), settings.gamma)
