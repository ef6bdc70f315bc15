"""S2D: one draft model that may speak after some of its layers, as early as it is sure (arXiv 2407.01955). Lossless.

Such a draft is trained to speak at each exit (sorted fine-tuning; `train --method draft --preset s2d`). Only tokens
that an exit is unsure of go on to the next one. Details of the cascade are ours, where the paper's were not at hand.
"""

import torch
from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from torch import Tensor

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.accept import exact
from specbench.engine.drafters import Drafter
from specbench.engine.layer_session import LayerSession
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.choose import derived_runtime
from specbench.engine.runtimes.layers import alone
from specbench.engine.sampling import draw, wide
from specbench.engine.session import Session, common
from specbench.engine.speculate import Speculative
from specbench.engine.types import Draft, Method, Sampling, Stateless, Watch


class Settings(Base):
    gamma: int = Field(ge=1, description="the most draft tokens a round (γ)")
    exits: tuple[int, ...] = Field(description="after how many of its layers the draft may speak, before the last")
    thresholds: tuple[float, ...] = Field(
        description="an exit speaks if its likeliest token has at least this probability; the last of them is the "
        "whole draft's: a draft ends after a token that it is less sure of"
    )

    @field_validator("exits")
    @classmethod
    def _rising(cls, exits: tuple[int, ...]) -> tuple[int, ...]:
        if any(before < 1 for before in exits) or list(exits) != sorted(set(exits)):
            raise PydanticCustomError("exits", "must be rising numbers of layers, from 1 on")
        return exits

    @field_validator("thresholds")
    @classmethod
    def _fit(cls, thresholds: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        if any(not 0 <= share <= 1 for share in thresholds):
            raise PydanticCustomError("thresholds", "must be probabilities")
        exits = info.data.get("exits")
        if exits is not None and len(thresholds) != len(exits) + 1:
            raise PydanticCustomError("thresholds", "needs one for each of exits, and one for the whole draft")
        return thresholds


class SortedDrafter(Drafter):
    """Drafts by the first layers of a draft model, and by more of them where they are unsure.

    Tokens that left early have states that deeper layers have not read; `waiting` keeps them by exit, and a deeper
    layer reads all of them before it speaks. So what an exit says is what its layers say of the whole text.
    """

    def __init__(self, draft: LayerSession, settings: Settings, watch: Watch) -> None:
        self.draft, self.watch, self.thresholds = draft, watch, settings.thresholds
        self.exits = (*settings.exits, draft.layers)

    def begin(self, prompt: list[int]) -> None:
        self.draft.truncate(0)
        with self.watch.forward("draft", len(prompt), 0):
            self.draft.forward(prompt, keep=1)
        self.waiting: list[Tensor | None] = [None] * (len(self.exits) - 1)

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """K tokens; each waits for one number on the host at each exit that it is asked at.

        Which exit speaks does not depend on the token that is drawn, so q is the distribution of what is drafted.
        """
        self.roll_back(context)
        fed: list[int] | Tensor = context[len(self.draft) :]
        tokens: list[Tensor] = []
        probs = []
        while len(tokens) < gamma:
            with self.watch.forward("draft", len(fed), len(self.draft)):
                logits, sure = self.speak(self.draft.read(fed, self.exits[0]))
            token, q = draw(logits, sampling, rng)
            tokens.append(token)
            probs.append(q)
            if not sure:
                break
            fed = token
        return Draft(torch.cat(tokens), None if sampling.greedy else torch.cat(probs))  # type: ignore[arg-type]

    def roll_back(self, context: list[int]) -> None:
        """Forget what is not in the committed text, in place, and its last token, which is read again if it was."""
        shared = min(common(self.draft.tokens, context), len(context) - 1)
        self.draft.truncate(shared)
        for at, states in enumerate(self.waiting):
            if states is not None:
                self.waiting[at] = states[: max(0, shared - self.draft.cached(self.exits[at]))]

    def speak(self, states: Tensor) -> tuple[Tensor, bool]:
        """The logits [1, V] of the first exit that is sure, and True; else those of the whole draft, and False.

        `states` [n, D] leave the first exit.
        """
        for at, threshold in enumerate(self.thresholds):
            logits = self.draft.say(states[-1:])
            sure = float(wide(logits).softmax(-1).max()) >= threshold
            if at == len(self.waiting):
                break
            earlier = self.waiting[at]
            states = states if earlier is None else torch.cat([earlier, states])
            if sure:
                self.waiting[at] = states
                break
            self.waiting[at] = None
            states = self.draft.run(states, self.exits[at], self.exits[at + 1])
        return logits, sure


class S2D(Speculative, Stateless):
    """Speculative decoding with a draft of several exits."""

    lossless = True
    accept = staticmethod(exact)

    def __init__(self, target: Session, drafter: SortedDrafter, gamma: int) -> None:
        self.target, self.drafter, self.gamma = target, drafter, gamma
        self.reach = gamma + 1


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Raises UserError for a draft without such exits or with another tokenizer.

    In a batch the draft's forwards are computed alone. The runtimes that run no layers apart have it on static.
    """
    pair.need_one_tokenizer("a draft of several exits speaks the target's own tokens")
    pair.need_one_device("s2d reads the draft's layers one after another")
    target = pair.session("target", watch)
    model = pair.session("draft").model
    layers = model.config.get_text_config().num_hidden_layers
    if settings.exits and settings.exits[-1] >= layers:
        raise UserError(
            f"exits has {settings.exits[-1]}, but the draft of {pair.name} has {layers} layers; set s2d.exits and "
            "s2d.thresholds"
        )
    # The drafter enters the watch, around all layers that are asked for a token.
    draft = LayerSession(model, "draft", None, pair.vocabulary, derived_runtime(alone(pair.runtime), model))
    return S2D(target, SortedDrafter(draft, settings, watch), settings.gamma)
