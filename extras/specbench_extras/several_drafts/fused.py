"""Several draft models propose together: each token is that of the surest one. Lossless.

CoSine (arXiv 2503.10325), its confidence-based fusion of tokens: all drafters go on from the token of the one that is
surest. The drafters are the pair's draft model and its further members. The paper's full text was not available; its
routing is `routed`, and its trees of alternatives and its pipeline over several machines are not here.
"""

from collections.abc import Callable, Sequence

import torch
from pydantic import Field
from torch import Tensor

from specbench.config import Settings as Base
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Method, Sampling, Scored, Watch
from specbench.methods.chains.sps import SpS


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")


class Panel:
    """Several models that read the same tokens: their logits after each token are those of the surest one there.

    Which model that is depends on the text before alone, so a token drawn from its distribution is a proper draft.
    `chosen` are the models that read; the others catch up when they are chosen again. `said` holds, for each token
    since the last `catch_up`, the token [d] that each of them found likeliest there, on the device.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = sessions
        self.chosen = list(range(len(sessions)))
        self.said: list[Tensor] = []

    @property
    def device(self) -> torch.device:
        return self.sessions[0].device

    def restart(self, prompt: Sequence[int]) -> Scored:
        return self._read(lambda session: session.restart(prompt))

    def catch_up(self, context: Sequence[int], hidden: Sequence[int] = ()) -> Scored:
        """As of one session. Hidden states are not given."""
        self.said.clear()
        return self._read(lambda session: session.catch_up(context))

    def forward(self, tokens: Tensor, *, hidden: Sequence[int] = ()) -> Scored:
        return self._read(lambda session: session.forward(tokens))

    def draft_chain(self, context: Sequence[int], count: int, sampling: Sampling, rng: torch.Generator) -> None:
        """Nothing: who is surest is asked after each token."""

    def _read(self, read: Callable[[Session], Scored]) -> Scored:
        """Logits [1, V] after the last token that the chosen models read."""
        logits = torch.stack([read(self.sessions[i]).logits[-1:] for i in self.chosen])
        self.said.append(logits[:, -1].argmax(-1))
        return Scored(surest(logits))


def surest(logits: Tensor) -> Tensor:
    """Of the logits [d, n, V] of d models those [n, V] of the model with the highest probability, the first on ties."""
    at = (logits.amax(-1) - logits.logsumexp(-1)).argmax(0)
    return logits.gather(0, at[None, :, None].expand(1, *logits.shape[1:]))[0]


def panel(pair: Pair, watch: Watch) -> Panel:
    """The pair's draft model and its further members. Raises UserError for a draft model with another tokenizer."""
    draft = pair.session("draft", watch)
    pair.need_one_tokenizer("drafters that go on from each other's tokens need one vocabulary")
    return Panel([draft, *(pair.session(role, watch) for role in pair.extra_members)])


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return SpS(pair.session("target", watch), ModelDrafter(panel(pair, watch)), settings.gamma)
