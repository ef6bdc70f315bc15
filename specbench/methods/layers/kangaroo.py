"""Kangaroo: the target's first layers and a trained adapter draft (arXiv 2404.18911). Lossless.

The other layers verify on the states that the first ones have computed, so nothing is computed twice.
"""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.accept import exact
from specbench.engine.drafters import Drafter
from specbench.engine.layer_session import LayerSession
from specbench.engine.lengths import DraftToken
from specbench.engine.models.eagle_head import config_of, head_config, stored_settings
from specbench.engine.models.exit_adapter import ExitAdapter
from specbench.engine.models.heads import Head, hidden_size, load_once, placed, refuse_damaged
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.choose import derived_runtime
from specbench.engine.runtimes.layers import alone
from specbench.engine.sampling import draw
from specbench.engine.session import Session
from specbench.engine.speculate import Speculative
from specbench.engine.types import Draft, Method, Sampling, Scored, Stateless, Verdict, Watch
from specbench.methods.lengths.confidence import Confidence

KIND = "kangaroo"


class Settings(Base):
    gamma: int = Field(ge=1, description="the most draft tokens a round (γ)")
    threshold: float = Field(gt=0, lt=1, description="a draft ends after a token with a lower probability q(d) (η)")
    head: str = Field(description="trained adapter: a file, or `auto` (the one that ships with the pair)")


SHAPES = {
    **{f"self_attn.{name}_proj.weight": (-1, -1) for name in "qkvo"},
    "input_layernorm.weight": (-1,),
    "norm.weight": (-1,),
}


class ExitDrafter(Drafter):
    """Drafts by the target's layers before `exit` and the adapter, one token at a time.

    The first layers read tokens ahead of the others. The states that leave them are kept for `finish`, in which the
    others follow; the last drafted token is first read there. The adapter's cache holds the committed text but for its
    last token, and sometimes for one more: after full acceptance it has not read the last drafted token.
    """

    def __init__(self, target: LayerSession, adapter: Session, exit: int, threshold: float, watch: Watch) -> None:
        self.target, self.adapter, self.exit, self.watch = target, adapter, exit, watch
        self.reads = (exit,)
        self.lengths = Confidence(threshold, shortest=1)

    def begin(self, prompt: list[int]) -> None:
        self.adapter.truncate(0)
        self.lengths.begin(prompt)

    @torch.inference_mode()
    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        """The adapter reads the states of the target's exit layer."""
        assert scored.hidden is not None
        with self.watch.forward("draft", len(tokens), 0):
            self.adapter.forward(tokens, keep=1, features=scored.hidden)
        self.unread = scored.hidden[:0]  # [n, D]: the states of committed tokens that the adapter has not read

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """K tokens by K forwards of the first layers and the adapter; each waits for one number on the host."""
        most = self.lengths.most(gamma, len(context))
        fed: list[int] | Tensor = context[-1:]
        unread = context[len(self.adapter) : -1]
        states, tokens, probs = [], [], []
        while True:
            with self.watch.forward("draft", 1 + len(unread), len(self.target)):
                state = self.target.read(fed, self.exit)
                states.append(state)
                if len(unread):
                    fed, state = [*unread, *fed], torch.cat([self.unread, state])
                    unread = []
                logits = self.adapter.forward(fed, keep=1, features=state).logits
            token, q = draw(logits, sampling, rng)
            tokens.append(token)
            probs.append(q)
            if self.lengths.enough(len(tokens), DraftToken(token, logits, q, None)) or len(tokens) == most:
                break
            fed = token
        self.ahead = torch.cat(states)  # [K, D]: of the last committed token, and of all drafted ones but the last
        return Draft(
            torch.cat(tokens),
            None if sampling.greedy else torch.cat(probs),  # type: ignore[arg-type]
            predictions=self.lengths.predictions(len(tokens)),
        )

    def finish(self, target: Session, recent: Sequence[int], draft: Draft, hidden: Sequence[int]) -> Scored:
        """Score in one forward: the first layers read the last drafted token, the others follow on all states."""
        return self.target.finish({self.exit: self.ahead}, rest=draft.tokens[-1:])

    def observe(self, scored: Scored, verdict: Verdict) -> None:
        """The adapter forgets the tokens that were rejected."""
        assert scored.hidden is not None
        drafted = len(verdict.drafted)
        self.adapter.truncate(len(self.adapter) - max(0, drafted - 1 - verdict.accepted))
        self.unread = scored.hidden[drafted:] if verdict.accepted == drafted else scored.hidden[:0]


class Kangaroo(Speculative, Stateless):
    """Speculative decoding with the target's first layers."""

    lossless = penalised = True
    accept = staticmethod(exact)

    def __init__(self, target: LayerSession, drafter: ExitDrafter, gamma: int, hashes: dict[str, str]) -> None:
        self.target, self.drafter, self.gamma, self.hashes = target, drafter, gamma, hashes
        self.score, self.reach = drafter.finish, gamma + 1


def check_target(pair: Pair, method: str = KIND) -> PreTrainedModel:
    """The target, which an adapter of a method must be able to read. Raises UserError if it cannot."""
    target = pair.models["target"]
    width, read = target.config.get_text_config().hidden_size, hidden_size(target)
    if width != read:
        raise UserError(
            f"{method} reads states as wide as the output layer, but {type(target).__name__} has {width} and {read}; "
            "choose another target or method"
        )
    return target


def exit_adapter(head: Head, target: PreTrainedModel) -> tuple[ExitAdapter, int]:
    """The adapter of a file, on the target's device and in its type, and the number of layers before its exit.

    Raises UserError where its tensors disagree.
    """
    layers = target.config.get_text_config().num_hidden_layers
    with refuse_damaged(head.kind):
        exit_layer = head.trained["exit"]
        if type(exit_layer) is not int or not 0 < exit_layer < layers:
            raise ValueError(f"its exit is no layer of {layers}")
        model = new_adapter(target, head.trained["config"])
        model.load_state_dict(dict(head.tensors))
    placed(model, target)
    return model, exit_layer


def new_adapter(target: PreTrainedModel, stored: dict[str, object] | None = None) -> ExitAdapter:
    """An adapter with torch's first weights, in float32, with the target's layer sizes or the `stored` ones."""
    config = target.config.get_text_config()
    stored = stored or stored_settings(head_config(target, config.vocab_size))
    with torch.random.fork_rng(devices=[]):
        return ExitAdapter(
            config_of(config.hidden_size, config.hidden_size, config.vocab_size, stored),
            target.get_output_embeddings(),
        )


def loaded(file: str, pair: Pair) -> tuple[ExitAdapter, int, dict[str, str]]:
    """The adapter of a file, or the one that ships with the pair, its exit and its hashes. Raises UserError."""
    target = check_target(pair)
    pair.need_one_device(f"{KIND} drafts with the target's own layers")
    (adapter, exit_layer), hashes = load_once(file, KIND, pair, SHAPES, lambda head: exit_adapter(head, target))
    return adapter, exit_layer, hashes


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for a head or a runtime that does not fit it.

    In a batch its forwards are computed alone, since the first layers of each text read ahead by themselves.
    """
    model, exit_layer, hashes = loaded(settings.head, pair)
    target = LayerSession(
        pair.models["target"],
        "target",
        watch,
        pair.vocabulary,
        pair.runtime,
        pair.prefixes,
        change=pair.change("target", watch),
    )
    # The drafter enters the watch, around the adapter and the first layers together.
    adapter = Session(model, "draft", None, pair.vocabulary, derived_runtime(alone(pair.runtime), model))
    return Kangaroo(target, ExitDrafter(target, adapter, exit_layer, settings.threshold, watch), settings.gamma, hashes)
