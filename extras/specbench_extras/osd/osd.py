"""OSD: online speculative decoding, whose draft learns while it serves (arXiv 2310.07177). Lossless at any moment.

After every `interval` texts the draft makes one step of AdamW towards the target's distribution at the places where its
token was rejected. Between two steps it is plain speculative sampling, with the draft as it is.
"""

import copy
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config import Settings as Base
from specbench.engine.clock import now
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.pair import Pair
from specbench.engine.models.quantize import need_float
from specbench.engine.models.room import announce, learning_bytes
from specbench.engine.session import Session
from specbench.engine.types import Method, Round, Sampling, Watch
from specbench.methods.chains.sps import SpS

UPDATES = "updates"  # the name of their seconds in a run's apart.json
Text = tuple[list[int], list[int]]  # tokens with the prompt's, and the places in them whose draft was rejected


class LearningSettings(Base):
    """Settings of a draft that learns from text to text."""

    interval: int = Field(ge=1, description="texts between two updates of the draft")
    learning_rate: float = Field(gt=0, allow_inf_nan=False, description="of AdamW, the same throughout")
    weight_decay: float = Field(ge=0, allow_inf_nan=False, description="of AdamW")
    clip: float = Field(gt=0, description="largest norm of an update's gradient")
    count_updates: bool = Field(description="the seconds of updates count as decode time of the text before them")


class Settings(LearningSettings):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")


class Learner:
    """A draft that learns from texts, and the texts it has been given since its first weights.

    The weights follow from the texts, bit by bit on the same machine. So the texts are the state, and not the weights
    and the optimiser's moments, which are a thousand times larger.
    """

    def __init__(self, draft: PreTrainedModel, target: PreTrainedModel, settings: LearningSettings) -> None:
        """`draft` changes in place; its present weights are the first ones. The optimiser works in float32 or wider."""
        self.draft, self.target, self.settings = draft, target, settings
        self.parameters = [parameter.requires_grad_() for parameter in draft.parameters()]
        self.first = [parameter.detach().clone() for parameter in self.parameters]
        self.forget()

    def forget(self) -> None:
        """Go back to the first weights, in place."""
        with torch.no_grad():
            for parameter, first in zip(self.parameters, self.first, strict=True):
                parameter.copy_(first)
        wide = [torch.promote_types(first.dtype, torch.float32) for first in self.first]
        self.weights = [first.to(kind, copy=True) for first, kind in zip(self.first, wide, strict=True)]
        given = self.settings
        self.optimizer = torch.optim.AdamW(self.weights, lr=given.learning_rate, weight_decay=given.weight_decay)
        self.texts: list[Text] = []
        self.learned = 0  # texts that updates were made of
        self.hash = ""  # of the weights; empty for the first ones

    @property
    def due(self) -> bool:
        return len(self.texts) - self.learned >= self.settings.interval

    def update_due(self, seconds: dict[str, float]) -> None:
        """Make the updates that are due, in place; `seconds` gets theirs."""
        if not self.due:
            return
        began = now()
        while self.due:
            self.update()
        if self.draft.device.type == "cuda":
            torch.cuda.synchronize(self.draft.device)
        seconds[UPDATES] = seconds.get(UPDATES, 0.0) + now() - began

    def update(self) -> None:
        """Make one step from the next `interval` texts, in place, if there is a place to learn from."""
        some = self.texts[self.learned : self.learned + self.settings.interval]
        self.learned += len(some)
        count = sum(len(places) for _, places in some)
        if not count:
            return
        with torch.inference_mode(False), torch.enable_grad():
            for tokens, places in some:
                if places:
                    (self.loss(tokens, places) / count).backward()
        for weight, parameter in zip(self.weights, self.parameters, strict=True):
            weight.grad = None if parameter.grad is None else parameter.grad.to(weight.dtype)
            parameter.grad = None
        torch.nn.utils.clip_grad_norm_(self.weights, self.settings.clip)
        self.optimizer.step()
        with torch.no_grad():
            for weight, parameter in zip(self.weights, self.parameters, strict=True):
                parameter.copy_(weight)
        self.hash = hash_of(self.parameters)

    def loss(self, tokens: list[int], places: list[int]) -> Tensor:
        """The sum of the cross-entropies of the target's and the draft's distributions at these places."""
        ids = torch.tensor([tokens[: places[-1]]], device=self.draft.device)
        before = torch.tensor(places, device=self.draft.device) - 1
        with torch.no_grad():
            taught = self.target(ids.to(self.target.device), use_cache=False).logits[0].to(before.device)[before]
        drafted = self.draft(ids, use_cache=False).logits[0, before]
        size = min(taught.shape[-1], drafted.shape[-1])
        wide = torch.promote_types(drafted.dtype, torch.float32)
        p, log_q = taught[:, :size].to(wide).softmax(-1), drafted[:, :size].to(wide).log_softmax(-1)
        return -(p * log_q).sum()

    def state(self) -> Any:
        return {"texts": [[list(tokens), list(places)] for tokens, places in self.texts], "weights": self.hash}

    def restore(self, state: Any) -> None:
        """Learn what is missing of a state's texts, or all again. Raises ValueError if the weights become others."""
        texts = [(list(tokens), list(places)) for tokens, places in state["texts"]]
        if texts[: len(self.texts)] != self.texts:
            self.forget()
        self.texts = texts
        while self.due:
            self.update()
        if self.hash != state["weights"]:
            raise ValueError("the draft has learned other weights than before from the same texts; start a new run")


def hash_of(tensors: list[torch.nn.Parameter]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


class OSD(SpS):
    """Speculative sampling with a draft that learns from text to text of a task."""

    drafter: ModelDrafter

    def __init__(
        self, target: Session, drafter: ModelDrafter, settings: Settings, learner: Learner, seconds: dict[str, float]
    ) -> None:
        """`seconds` gets those of updates, counted or not, in place."""
        super().__init__(target, drafter, settings.gamma)
        self.settings, self.learner, self.seconds = settings, learner, seconds

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        self.learner.update_due(self.seconds)
        self.tokens, self.places = list(prompt), list[int]()
        for step in super().rounds(prompt, sampling, rng):
            if step.verdict and step.verdict.accepted < len(step.verdict.drafted):
                self.places.append(len(self.tokens) + step.verdict.accepted)
            self.tokens += step.tokens
            yield step

    def ended(self, last: Round) -> None:
        """Take in the text, without what its end cut off."""
        kept = len(self.tokens) - last.truncated
        self.learner.texts.append((self.tokens[:kept], [place for place in self.places if place < kept]))
        if self.settings.count_updates:
            self.learner.update_due(self.seconds)

    def reset(self, task: str = "") -> None:
        super().reset(task)
        self.learner.forget()

    def state(self) -> Any:
        """The texts so far, and a hash of the weights that follow. An update that is due is made: nobody times this."""
        self.learner.update_due(self.seconds)
        return self.learner.state()

    def restore(self, state: Any) -> None:
        self.learner.restore(state)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """The draft computes at the eager runtime and reads shared prefixes again: others keep copies of what changes.

    Raises UserError for a pair without a draft and for two tokenizers.
    """
    pair.need_one_tokenizer("osd trains the draft on the target's own tokens")
    draft = pair.session("draft").model
    need_float(draft, "osd trains a copy of the draft")
    announce("osd", "a second draft with what trains it", learning_bytes(draft), draft.device)
    model = copy.deepcopy(draft)
    drafter = ModelDrafter(Session(model, "draft", watch, pair.vocabulary, home=pair.device))
    learner = Learner(model, pair.models["target"], settings)
    return OSD(pair.session("target", watch), drafter, settings, learner, pair.seconds)
