"""Mirror-SD: while the target's later layers verify, the draft model goes on from each likely correction. Lossless.

Mirror-SD (arXiv 2510.13161, section 3.1). By the states of an early layer the target names the κ likeliest tokens at
every place of the draft and after it, and the draft model drafts on from each. If the token that the target then adds
is one of them, the draft that begins there is the next one.

Here all is done in turn: texts and rounds are Mirror-SD's, seconds are not. `analysis.overlap` models those. The draft
model is an ordinary one; speculative streaming is not built.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.accept import exact
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.layers import layer_runner
from specbench.engine.runtimes.types import LayerRunner
from specbench.engine.sampling import draw
from specbench.engine.session import Session
from specbench.engine.speculate import Speculative
from specbench.engine.types import Draft, Method, Sampling, Scored, Stateless, Verdict, Watch

BRANCHES = "branches"  # the role of the draft model while it drafts them


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round, and of each branch (γ)")
    branches: int = Field(
        ge=1, description="likeliest tokens of the early layer that a draft begins after, a place (κ)"
    )
    exit: float = Field(gt=0, lt=1, description="share of the target's layers before the states that are read early")


class Branches(NamedTuple):
    """B drafts of γ tokens, each after a token that the target may add."""

    begin: list[tuple[int, int]]  # [B]: how many drafted tokens stand before that token, and the token
    tokens: Tensor  # [γ, B]
    probs: list[Tensor | None]  # γ times [B, V]; None when greedy

    def draft(self, branch: int) -> Draft:
        probs = [q[branch] for q in self.probs if q is not None]
        return Draft(self.tokens[:, branch], torch.stack(probs) if probs else None)


class MirrorDrafter(ModelDrafter[Session]):
    """A draft model that has the next draft ready, if an early layer of the target named where it begins.

    Branches hang on the draft as a tree in the draft model's cache, so that each of their tokens is read once. After
    a verdict the cache keeps the path to what was committed, with the ready draft but for its last token.
    """

    def __init__(self, session: Session, output: LayerRunner, gamma: int, branches: int, exit: int) -> None:
        """`output` computes the target's last norm and output layer; `exit` is the layer that the states enter."""
        super().__init__(session)
        self.output, self.gamma, self.branches, self.reads = output, gamma, branches, (exit,)

    def begin(self, prompt: list[int]) -> None:
        super().begin(prompt)
        self.ready: Draft | None = None

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """The draft that is ready, without a forward; or a new one."""
        self.committed = len(context)
        return self.ready or super().propose(context, gamma, sampling, rng)

    def branch(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> None:
        """Draft the branches, by the states of the target's early layer."""
        assert scored.hidden is not None
        self.session.role = BRANCHES
        self.grown = self.go_on(draft, self.likely(draft, scored.hidden), sampling, rng)
        self.session.role = "draft"

    def observe(self, scored: Scored, verdict: Verdict) -> None:
        self.ready = self.keep(self.grown, verdict)

    @torch.inference_mode()
    def likely(self, draft: Draft, states: Tensor) -> list[tuple[int, int]]:
        """Places and tokens that the target may add, by states [K + 1, D] of the exit: κ a place, in their order.

        The drafted token is left out at its own place, as the target would not add it but accept it.
        """
        vocabulary = self.session.vocabulary
        top = self.output.output(states)[:, :vocabulary].topk(min(self.branches, vocabulary)).indices.tolist()
        drafted = [*draft.tokens.tolist(), None]
        return [(place, token) for place, tokens in enumerate(top) for token in tokens if token != drafted[place]]

    def go_on(self, draft: Draft, begin: list[tuple[int, int]], sampling: Sampling, rng: torch.Generator) -> Branches:
        """Draft γ tokens after each beginning, all at once, by γ forwards. Each token is drawn independently."""
        drafted, session = draft.tokens.tolist(), self.session
        session.truncate(self.committed)
        first = [*drafted, *(token for _, token in begin)]
        parents = [*range(-1, len(drafted) - 1), *(place - 1 for place, _ in begin)]
        logits = session.forward(first, parents=parents).logits[len(drafted) :]
        tokens, probs = [], []
        while True:
            token, q = draw(logits, sampling, rng)
            tokens.append(token)
            probs.append(q)
            if len(tokens) == self.gamma:
                return Branches(begin, torch.stack(tokens), probs)
            fed = len(drafted) + (len(tokens) - 1) * len(begin)
            logits = session.forward(token, parents=range(fed, fed + len(begin))).logits

    def keep(self, branches: Branches, verdict: Verdict) -> Draft | None:
        """The draft after the token that the target added, if there is one; the cache keeps the path to its end."""
        assert verdict.token is not None  # the exact rule always adds one
        path, added = list(range(verdict.accepted)), (verdict.accepted, verdict.token)
        if added not in branches.begin:
            self.session.keep(self.committed, path)
            return None
        branch = branches.begin.index(added)
        levels, count = len(branches.tokens), len(branches.begin)
        path += [len(verdict.drafted) + level * count + branch for level in range(levels)]
        self.session.keep(self.committed, path)
        return branches.draft(branch)


class Mirror(Speculative, Stateless):
    """Speculative sampling, part of whose drafts are made before it is known that they are needed."""

    lossless = True
    drafter: MirrorDrafter

    def __init__(self, target: Session, drafter: MirrorDrafter) -> None:
        self.target, self.drafter, self.gamma = target, drafter, drafter.gamma
        self.reach = longest(drafter.gamma, drafter.branches)

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """The exact rule, after the branches were drafted: they know nothing of it."""
        self.drafter.branch(draft, scored, sampling, rng)
        return exact(draft, scored, sampling, rng)


def longest(gamma: int, branches: int) -> int:
    """The most tokens that the draft model reads beyond the text: its draft, and κ branches at each place."""
    return gamma + (gamma + 1) * branches * gamma


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """The output layer computes at the eager runtime, on states that any runtime gives.

    Raises UserError for a target of one layer.
    """
    model = pair.models["target"]
    layers = model.config.get_text_config().num_hidden_layers
    if layers < 2:
        raise UserError(f"mirror reads states between two layers, but the target of {pair.name} has one; use sps")
    exit = min(max(1, round(settings.exit * layers)), layers - 1)
    session = pair.session("draft", watch)
    drafter = MirrorDrafter(session, layer_runner(EAGER, model), settings.gamma, settings.branches, exit)
    return Mirror(pair.session("target", watch), drafter)
