"""SWIFT: the target drafts for itself with some sublayers skipped (arXiv 2410.06916). Lossless.

Which sublayers are skipped is searched while decoding: sets of them are tried on the text so far, and the one whose
greedy tokens agree best with it drafts from then on.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.decoding.layer_skip import decoder_layers, without
from specbench.decoding.lengths import Lengths
from specbench.decoding.sampling import probabilities
from specbench.decoding.session import Session
from specbench.decoding.speculate import speculate
from specbench.decoding.trees import exact_tree
from specbench.decoding.types import Draft, Method, Round, Sampling, Stateless, Watch
from specbench.methods.swift_search import Search, Skip
from specbench.models import Pair
from specbench.runtimes.choose import beside

BOUNDS = (0.95, 0.8, 0.5)  # confidences that divide the four numbers of branches
RAW = Sampling(1.0)  # confidence is read from the raw logits, at any temperature (official code)

Branches = tuple[int, int, int, int]


class Settings(Base):
    gamma: int = Field(ge=1, description="draft steps a round at most, levels of the tree (γ)")
    stop_threshold: float = Field(ge=0, le=1, description="the draft ends with a step whose likeliest token has less")
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
        """The most tokens of a tree, and the last committed one."""
        # A step goes on if its confidence is at or above the threshold: those whose range of confidences ends there.
        tops = (1.0, *BOUNDS)
        counts = list(zip(tops, self.branches, strict=True)) + list(zip(tops, self.branches_sampled, strict=True))
        inner = max(count for top, count in counts if top >= self.stop_threshold)
        return (self.gamma - 1) * inner + max(count for _, count in counts) + 1


class SelfDrafter:
    """A target without some of its sublayers, which it chooses anew while it drafts.

    It has a cache of its own, as a draft model has; the official code lets it read a copy of the target's. So a set
    that is tried, and one that takes over, reads the prompt first, within the round in which that happens.
    """

    def __init__(self, target: Session, watch: Watch, settings: Settings) -> None:
        self.target, self.watch, self.settings = target, watch, settings
        self.layers = len(decoder_layers(target.model))
        self.lengths = Lengths()  # its trees end by themselves
        self.restore([])

    def begin(self, prompt: list[int]) -> None:
        self.prompt, self.rounds = len(prompt), 0
        self.session.restart(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of at most γ levels: the likeliest token of each goes on, the others are leaves.

        Each level costs a forward and a copy of one number to the host. At T > 0 too the tokens are the likeliest,
        point masses for the target to test in turn; the official code draws them.
        """
        self.improve(context, rng)
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

        The random numbers of a try follow from the text's seed and the tries so far, so that no state of a generator
        has to be kept.
        """
        window = self.settings.context_window
        due = self.rounds % self.settings.opt_interval == 0
        self.rounds += 1
        if not due or self.search.ended or len(context) - self.prompt <= window + 1:
            return
        skip = self.search.propose(np.random.default_rng([rng.initial_seed(), len(self.search.tried)]))
        session = self.view(skip)
        if self.search.learn(skip, agreement(session, context[: self.prompt + window + 1], window)):
            self.session = session

    def view(self, skip: Skip) -> Session:
        """A new sequence for the target without the sublayers `skip`."""
        inner = self.layers - 2
        attention, mlp = [i + 1 for i in skip if i < inner], [i - inner + 1 for i in skip if i >= inner]
        model = without(self.target.model, attention, mlp)
        return Session(
            model, "draft", self.watch, self.target.vocabulary, beside(self.target.runtime, model, checked=False)
        )

    def state(self) -> list[list[Any]]:
        """Every set that was tried, as the hexadecimal number with bit i set for sublayer i, and its score."""
        return [[f"{sum(1 << i for i in skip):x}", score] for skip, score in self.search.tried]

    def restore(self, state: list[list[Any]]) -> None:
        inner, chosen = self.layers - 2, self.settings
        odd = range(0, inner, 2)  # of the inner layers, which begin at 1
        first = (*odd, *(inner + i for i in odd))
        self.search = Search(
            first,
            2 * inner,
            skipped_sublayers(self.layers, chosen.skip_ratio),
            chosen.bayes_interval,
            chosen.kappa,
            chosen.max_score,
            chosen.max_tolerance_iter,
            chosen.max_opt_iter,
        )
        for digits, score in state:
            self.search.learn(tuple(i for i in range(2 * inner) if int(digits, 16) >> i & 1), score)
        self.session = self.view(self.search.best)


def branches(confidence: float, counts: Branches) -> int:
    """How many tokens a draft step offers, by the probability of its likeliest one."""
    return next((count for bound, count in zip(BOUNDS, counts, strict=False) if confidence > bound), counts[-1])


def agreement(session: Session, tokens: list[int], window: int) -> float:
    """The share of the last `window` tokens that a model takes greedily, each behind the true ones before it."""
    found = session.forward(tokens[:-1], keep=window).logits.argmax(-1).tolist()
    return sum(a == b for a, b in zip(found, tokens[-window:], strict=True)) / window


def skipped_sublayers(layers: int, ratio: float) -> int:
    """How many of the 2 (L - 2) sublayers between the first and the last layer are skipped."""
    return math.floor(2 * (layers - 2) * ratio + 1e-9)


class Swift(Stateless):
    """Self-speculative decoding with a tree of likeliest tokens and a search that goes on from prompt to prompt."""

    lossless = True

    def __init__(self, target: Session, drafter: SelfDrafter, settings: Settings) -> None:
        self.target, self.drafter, self.settings = target, drafter, settings
        self.reach = settings.reach()

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        return speculate(self.target, self.drafter, exact_tree, self.settings.gamma, prompt, sampling, rng)

    def reset(self, task: str = "") -> None:
        self.drafter.restore([])

    def state(self) -> Any:
        return self.drafter.state()

    def restore(self, state: Any) -> None:
        self.drafter.restore(state)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Of the pair the target alone. Raises UserError where it has no layers that can be skipped."""
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
