"""DEL: where the target exits to draft, and how many tokens, is chosen again each round (arXiv 2504.05598). Lossless.

Every exit says what it would have drafted at each verified place, from states that are there anyway (shadow tokens).
How often that is the target's own token decides the next round. The paper's targets were trained to exit early; here
an adapter after each exit, as Kangaroo's, makes up for that, and the target is any.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config import Settings as Base
from specbench.engine.accept import exact
from specbench.engine.drafters import Drafter
from specbench.engine.layer_session import LayerSession
from specbench.engine.lengths import DraftToken
from specbench.engine.models.exit_adapter import ExitAdapter
from specbench.engine.models.heads import Head, load_once, refuse_damaged
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.choose import derived_runtime
from specbench.engine.runtimes.layers import alone
from specbench.engine.sampling import draw, wide
from specbench.engine.session import Session
from specbench.engine.speculate import Speculative
from specbench.engine.types import Draft, Method, Sampling, Scored, Stateless, Verdict, Watch
from specbench.methods.layers.kangaroo import check_target, exit_adapter
from specbench.methods.lengths.confidence import Confidence

KIND = "del"
Compared = tuple[NDArray[np.bool_], NDArray[np.float64]]  # [E, n] each: see `compared`


class Settings(Base):
    gamma: int = Field(ge=1, description="the most draft tokens a round")
    memory: float = Field(gt=0, le=1, description="what a count keeps of its weight from round to round (ω)")
    prompt: int = Field(ge=1, description="last tokens of the prompt whose shadow tokens count in the first round")
    bound: Literal["tpl", "confidence", "both"] = Field(
        description="what ends a draft: the chosen length (tpl), a token that the exit is unsure of (confidence), "
        "or either (both)"
    )
    head: str = Field(description="trained adapters: a file, or `auto` (the one that ships with the pair)")


class Shadows:
    """How often each of E exits says the target's token, and how sure it is then and otherwise; old rounds fade.

    `counts` and `sums` are [E, 2]: of right tokens and wrong ones, their numbers and summed probabilities.
    """

    def __init__(self, exits: int, memory: float) -> None:
        self.memory = memory
        self.counts, self.sums = np.zeros((exits, 2)), np.zeros((exits, 2))

    def add(self, right: NDArray[np.bool_], chances: NDArray[np.float64]) -> None:
        """Add a round's shadow tokens [E, n]: whether each is the target's, and its probability at its exit."""
        both = np.stack([right, ~right], 1)
        self.counts = self.memory * self.counts + both.sum(-1)
        self.sums = self.memory * self.sums + (both * chances[:, None]).sum(-1)

    def agreements(self) -> list[float]:
        """The share of right tokens of each exit (α)."""
        shares: list[float] = (self.counts[:, 0] / self.counts.sum(-1)).tolist()
        return shares

    def threshold(self, at: int) -> float:
        """Halfway between the mean probabilities of right tokens and wrong ones; NaN if there were none of a kind."""
        if not self.counts[at].all():
            return math.nan
        return float((self.sums[at] / self.counts[at]).mean())


def best_choice(agreements: Sequence[float], exits: Sequence[int], layers: int, most: int) -> tuple[int, int]:
    """The exit, as an index, and the length γ ≤ `most` with the most expected tokens per layer of the target.

    TPL(l, γ) = (1 + α + … + α^γ) / ((L - l) + (γ + 1) l), with l layers of L before the exit (equation 3). Among equals
    the first exit and the shortest length win; γ = 0 drafts nothing.
    """
    best, choice = -math.inf, (0, 0)
    for at, (share, before) in enumerate(zip(agreements, exits, strict=True)):
        tokens = 0.0
        for gamma in range(most + 1):
            tokens = 1 + share * tokens
            worth = tokens / (layers - before + (gamma + 1) * before)
            if worth > best:
                best, choice = worth, (at, gamma)
    return choice


class DynamicDrafter(Drafter):
    """Drafts by the target's layers before the chosen exit and the exit's adapter, one token at a time.

    The states that enter each exit up to the chosen one are kept for `finish`, in which the layers after it follow.
    After a round every adapter reads what was accepted, which gives the shadow tokens. So between rounds all adapters
    hold the committed text but for its last token, as the target does.
    """

    def __init__(
        self, target: LayerSession, adapters: Sequence[Session], exits: Sequence[int], settings: Settings, watch: Watch
    ) -> None:
        self.target, self.adapters, self.exits, self.settings, self.watch = target, adapters, exits, settings, watch
        self.reads, self.prompt_logits = tuple(exits), settings.prompt
        self.stop = Confidence(math.nan, shortest=1)
        self.lengths = self.stop
        self.of_prompt: Compared | None = None  # until the first round's shadow tokens join them

    def begin(self, prompt: list[int]) -> None:
        for adapter in self.adapters:
            adapter.truncate(0)
        self.shadows = Shadows(len(self.exits), self.settings.memory)
        self.choice = 0, 1  # official code: the first round drafts one token from the first exit

    @torch.inference_mode()
    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        """Each adapter reads the states of its exit."""
        assert scored.hidden is not None
        keep = len(scored.logits)
        with self.watch.forward("draft", len(tokens), 0):
            said = [
                adapter.forward(tokens, keep=keep, features=states).logits
                for adapter, states in zip(self.adapters, self.parts(scored.hidden), strict=True)
            ]
        self.of_prompt = compared(said, scored.logits)

    def parts(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """The states [n, D] of each exit, of those that stand side by side."""
        return hidden.chunk(len(self.exits), -1)

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """At most as many tokens as were chosen; each waits for one number on the host."""
        at, chosen = self.choice
        bound = self.settings.bound
        most = self.lengths.most(gamma if bound == "confidence" else min(chosen, gamma), len(context))
        self.stop.threshold = math.nan if bound == "tpl" else self.shadows.threshold(at)
        self.last, self.said, self.ahead = context[-1], [], []
        fed: list[int] | Tensor = context[-1:]
        tokens: list[Tensor] = []
        probs = []
        while len(tokens) < most:
            with self.watch.forward("draft", 1, len(self.target)):
                lowest = self.target.read(fed, self.exits[0])
                states = self.target.through(lowest, self.exits[0], self.exits[: at + 1])
                logits = self.adapters[at].forward(fed, keep=1, features=states[-1]).logits
            token, q = draw(logits, sampling, rng)
            self.ahead.append(states)
            self.said.append(logits)
            tokens.append(token)
            probs.append(q)
            if self.lengths.enough(len(tokens), DraftToken(token, logits, q, None)):
                break
            fed = token
        if not tokens:
            return Draft(torch.empty(0, dtype=torch.long, device=self.target.device), None)
        return Draft(
            torch.cat(tokens),
            None if sampling.greedy else torch.cat(probs),  # type: ignore[arg-type]
            predictions=self.lengths.predictions(len(tokens)),
        )

    def finish(self, target: Session, recent: Sequence[int], draft: Draft, hidden: Sequence[int]) -> Scored:
        """Score in one forward: the first layers read the last drafted token, the others follow; states of all."""
        if not self.ahead:
            return target.forward(recent[-1:], hidden=hidden)
        count = len(self.ahead[0])
        ahead = dict(zip(self.exits[:count], map(torch.cat, zip(*self.ahead, strict=True)), strict=True))
        return self.target.finish(ahead, rest=draft.tokens[-1:], hidden=self.exits[count:])

    @torch.inference_mode()
    def observe(self, scored: Scored, verdict: Verdict) -> None:
        """The adapters read the tokens that stand, and the next round is chosen."""
        assert scored.hidden is not None
        (at, _), drafted, rows = self.choice, len(verdict.drafted), verdict.accepted + 1
        stand = [self.last, *verdict.drafted[: verdict.accepted]]
        said = []
        with self.watch.forward("draft", rows, len(self.target) - drafted - 1):
            for index, (adapter, states) in enumerate(zip(self.adapters, self.parts(scored.hidden), strict=True)):
                has = min(drafted, rows) if index == at else 0  # of these rows, from drafting
                if index == at:
                    adapter.truncate(len(adapter) - (drafted - has))
                logits = self.said[:has] if index == at else []
                if has < rows:
                    logits.append(adapter.forward(stand[has:], features=states[has:rows]).logits)
                said.append(torch.cat(logits))
        right, chances = compared(said, scored.logits[:rows])
        if drafted:  # at T > 0 a token may be accepted that the target likes less than another
            right, chances = until_wrong(right, chances, at)
        if self.of_prompt is not None:
            right, chances = (np.concatenate(both, 1) for both in zip(self.of_prompt, (right, chances), strict=True))
            self.of_prompt = None
        self.shadows.add(right, chances)
        self.choice = best_choice(self.shadows.agreements(), self.exits, self.target.layers, self.settings.gamma)


def compared(said: Sequence[Tensor], target: Tensor) -> Compared:
    """Of E exits' logits [n, V], whether each likeliest token is the target's [n, V], and its probability; [E, n]."""
    chances, tokens = torch.stack([wide(logits).softmax(-1) for logits in said]).max(-1)
    both = torch.stack([(tokens == target.argmax(-1)).to(chances), chances]).cpu().double().numpy()
    return both[0] == 1, both[1]


def until_wrong(right: NDArray[np.bool_], chances: NDArray[np.float64], at: int) -> Compared:
    """Shadow tokens [E, n] up to the first wrong one of exit `at`, with it."""
    if right[at].all():
        return right, chances
    places = int(right[at].argmin()) + 1
    return right[:, :places], chances[:, :places]


class DynamicExit(Speculative, Stateless):
    """Speculative decoding with the target's first layers, more of them or fewer."""

    lossless = penalised = True
    accept = staticmethod(exact)

    def __init__(self, target: LayerSession, drafter: DynamicDrafter, hashes: dict[str, str]) -> None:
        self.target, self.drafter, self.gamma, self.hashes = target, drafter, drafter.settings.gamma, hashes
        self.score, self.reach = drafter.finish, self.gamma + 1


def exit_adapters(head: Head, target: PreTrainedModel) -> dict[int, ExitAdapter]:
    """The adapters of a file by the layers before them, rising. Raises UserError where its tensors disagree."""
    with refuse_damaged(KIND):
        exits, config = head.trained["exits"], head.trained["config"]
        if not exits or exits != sorted(set(exits)):
            raise ValueError("its exits are not in order")
        if strange := [name for name in head.tensors if name.split(".")[0] not in map(str, exits)]:
            raise ValueError(f"{strange[0]} belongs to no exit")
    made = {}
    for before in exits:
        prefix = f"{before}."
        own = {name.removeprefix(prefix): tensor for name, tensor in head.tensors.items() if name.startswith(prefix)}
        made[before], _ = exit_adapter(Head(KIND, own, {"exit": before, "config": config}), target)
    return made


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for a head or a runtime that does not fit it.

    In a batch its forwards are computed alone, since the first layers of each text read ahead by themselves.
    """
    model = check_target(pair, KIND)
    pair.need_one_device(f"{KIND} drafts with the target's own layers")
    adapters, hashes = load_once(settings.head, KIND, pair, None, lambda head: exit_adapters(head, model))
    target = LayerSession(
        model, "target", watch, pair.vocabulary, pair.runtime, pair.prefixes, change=pair.change("target", watch)
    )
    runtime = alone(pair.runtime)
    # The drafter enters the watch, around an adapter and the layers before it together.
    sessions = [
        Session(adapter, "draft", None, pair.vocabulary, derived_runtime(runtime, adapter))
        for adapter in adapters.values()
    ]
    return DynamicExit(target, DynamicDrafter(target, sessions, list(adapters), settings, watch), hashes)
