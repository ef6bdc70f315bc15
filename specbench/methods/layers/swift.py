"""SWIFT: the target drafts for itself with some sublayers skipped (arXiv 2410.06916). Lossless.

A search while decoding finds the sublayers to skip: it tries sets of them on the text so far, and the set whose greedy
tokens agree best with the text drafts from then on.
"""

import math
from typing import Any

import numpy as np
import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.drafters import Drafter
from specbench.engine.models.layer_skip import decoder_layers, without
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.choose import derived_runtime
from specbench.engine.sampling import probabilities
from specbench.engine.session import Session
from specbench.engine.speculate import Speculative
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Sampling, Stateless, Watch
from specbench.methods.layers.swift_search import Search, Skip

BOUNDS = (0.95, 0.8, 0.5)  # confidences that divide the four numbers of branches
RAW = Sampling(1.0)  # confidence is read from the raw logits, at any temperature (official code)

Branches = tuple[int, int, int, int]


class Settings(Base):
    gamma: int = Field(ge=1, description="the most draft steps a round, which are the levels of the tree (γ)")
    stop_threshold: float = Field(ge=0, le=1, description="a draft ends with a step whose likeliest token has less")
    branches: Branches = Field(description="T = 0: tokens of a step, if its likeliest has > .95, > .8, > .5, or less")
    branches_sampled: Branches = Field(description="T > 0: the same")
    skip_ratio: float = Field(gt=0, le=1, description="share of the sublayers between first and last layer to skip")
    context_window: int = Field(ge=1, description="tokens of a text on which a set of sublayers is tried")
    opt_interval: int = Field(ge=1, description="rounds from one try to the next")
    bayes_interval: int = Field(ge=0, description="every so many tries a Bayesian one, the others at random; 0: none")
    kappa: float = Field(ge=0, description="deviations above the mean in the Bayesian choice (κ)")
    max_score: float = Field(ge=0, description="the search ends at this agreement")
    max_tolerance_iter: int = Field(ge=1, description="the search ends after so many tries without a better one")
    max_opt_iter: int = Field(ge=0, description="the search ends after so many tries; 0: none, the first set stays")

    def reach(self) -> int:
        """The most tokens of a round: a tree, and the last committed token."""
        # A step with a confidence below the threshold is the last; so inner steps have a range that reaches above it.
        tops = (1.0, *BOUNDS)
        counts = list(zip(tops, self.branches, strict=True)) + list(zip(tops, self.branches_sampled, strict=True))
        inner = max(count for top, count in counts if top >= self.stop_threshold)
        return (self.gamma - 1) * inner + max(count for _, count in counts) + 1


class SelfDrafter(Drafter):
    """The target without some of its sublayers, which are chosen again while drafting.

    Each round begins with a copy of what the target's layers have cached, and a try with a copy of what they cached of
    the prompt (official code).
    """

    def __init__(self, target: Session, watch: Watch, settings: Settings) -> None:
        self.target, self.watch, self.settings = target, watch, settings
        self.layers = len(decoder_layers(target.model))
        self.restore([])

    def begin(self, prompt: list[int]) -> None:
        self.prompt, self.rounds = len(prompt), 0

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of at most γ levels: the likeliest token of each level has children, the others are leaves.

        Each level costs a forward and a copy of one number to the host. The tokens are the likeliest ones at T > 0 too,
        point masses for the target to test in turn; the official code draws them.
        """
        if not self.rounds:
            self.of_prompt = self.target.lend(range(self.layers))
        self.improve(context, rng)
        self.session.adopt(self.target.lend(self.attentions(self.search.best)))
        counts = self.settings.branches if sampling.greedy else self.settings.branches_sampled
        levels: list[torch.Tensor] = []
        parents: list[int] = []
        parent = -1
        logits = self.session.catch_up(context).logits[-1]
        while True:
            probs = probabilities(logits, RAW)
            top = probs.topk(min(max(counts), len(probs)))
            confidence = float(top.values[0])
            levels.append(top.indices[: branches(confidence, counts)])
            first = len(parents)
            parents += [parent] * len(levels[-1])
            if confidence < self.settings.stop_threshold or len(levels) == gamma:
                return Draft(torch.cat(levels), None, tuple(parents))
            parent = first
            logits = self.session.forward(top.indices[:1]).logits[-1]

    def improve(self, context: list[int], rng: torch.Generator) -> None:
        """Try another set of sublayers, once the text is long enough, and draft with it if it agrees better.

        A set is tried on the tokens after the first one of the answer, as in the official code.

        The random numbers of a try depend on the text's seed and the number of tries only, so no generator state has to
        be kept.
        """
        window, verified = self.settings.context_window, len(context) - 1 - self.prompt
        due = self.rounds > 0 and (self.rounds - 1) % self.settings.opt_interval == 0
        self.rounds += 1
        if not due or self.search.ended or verified <= window + 1:
            return
        skip = self.search.propose(np.random.default_rng([rng.initial_seed(), len(self.search.tried)]))
        session = self.view(skip)
        session.adopt(self.of_prompt.of(self.attentions(skip)))
        if self.search.learn(skip, agreement(session, context[self.prompt : self.prompt + 1 + window])):
            self.session = session

    def view(self, skip: Skip) -> Session:
        """A new sequence for the target without the sublayers `skip`."""
        inner = self.layers - 2
        attention, mlp = [i + 1 for i in skip if i < inner], [i - inner + 1 for i in skip if i >= inner]
        model = without(self.target.model, attention, mlp)
        runtime = derived_runtime(self.target.runtime, model, checked=False)
        return Session(model, "draft", self.watch, self.target.vocabulary, runtime)

    def attentions(self, skip: Skip) -> list[int]:
        """The layers whose attention is not among the sublayers `skip`."""
        return [layer for layer in range(self.layers) if not (layer and layer - 1 in skip and layer <= self.layers - 2)]

    def state(self) -> list[list[Any]]:
        """All sets that were tried, with their scores; a set is a hexadecimal number with bit i set for sublayer i."""
        return [[f"{sum(1 << i for i in skip):x}", score] for skip, score in self.search.tried]

    def restore(self, state: list[list[Any]]) -> None:
        inner, settings = self.layers - 2, self.settings
        odd = range(0, inner, 2)  # the odd layers, as inner layers are counted from layer 1 on
        first = (*odd, *(inner + i for i in odd))
        self.search = Search(
            first,
            2 * inner,
            skipped_sublayers(self.layers, settings.skip_ratio),
            settings.bayes_interval,
            settings.kappa,
            settings.max_score,
            settings.max_tolerance_iter,
            settings.max_opt_iter,
        )
        for digits, score in state:
            self.search.learn(tuple(i for i in range(2 * inner) if int(digits, 16) >> i & 1), score)
        self.session = self.view(self.search.best)


def branches(confidence: float, counts: Branches) -> int:
    """The number of tokens of a draft step, by the probability of its likeliest one."""
    return next((count for bound, count in zip(BOUNDS, counts, strict=False) if confidence > bound), counts[-1])


def agreement(session: Session, tokens: list[int]) -> float:
    """The share of tokens after the first that the model predicts greedily, each after the true ones before it."""
    predicted = session.forward(tokens[:-1]).logits.argmax(-1).tolist()
    return sum(a == b for a, b in zip(predicted, tokens[1:], strict=True)) / len(predicted)


def skipped_sublayers(layers: int, ratio: float) -> int:
    """How many of the 2 (L - 2) sublayers between the first and the last layer are skipped."""
    return math.floor(2 * (layers - 2) * ratio + 1e-9)


class Swift(Speculative, Stateless):
    """Self-speculative decoding with a tree of likeliest tokens and a search that continues from prompt to prompt."""

    lossless = True
    accept = staticmethod(exact_tree)
    drafter: SelfDrafter

    def __init__(self, target: Session, drafter: SelfDrafter, settings: Settings) -> None:
        self.target, self.drafter, self.settings = target, drafter, settings
        self.gamma, self.reach = settings.gamma, settings.reach()

    def reset(self, task: str = "") -> None:
        self.drafter.restore([])

    def state(self) -> Any:
        return self.drafter.state()

    def restore(self, state: Any) -> None:
        self.drafter.restore(state)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError if it has no layers that can be skipped."""
    pair.need_one_device("swift drafts with the target's own layers")
    target = pair.session("target", watch)
    kind = type(target.model).__name__
    try:
        layers = len(decoder_layers(target.model))
    except ValueError as error:
        raise UserError(f"swift cannot skip layers of {kind}: {error}; choose another target or method") from None
    if layers < 3:
        raise UserError(
            f"swift keeps the first and the last layer, and {pair.name} has {layers}; choose a deeper target"
        )
    if not skipped_sublayers(layers, settings.skip_ratio):
        least = math.ceil(100 / (2 * (layers - 2))) / 100
        raise UserError(
            f"swift.skip_ratio {settings.skip_ratio} skips none of the {2 * (layers - 2)} sublayers between the first "
            f"and the last layer; set it to {least} or more"
        )
    return Swift(target, SelfDrafter(target, watch, settings), settings)
