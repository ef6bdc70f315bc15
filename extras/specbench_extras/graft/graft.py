"""Graft: a draft stops where it is unsure, and the rest of the tree is retrieved from the target's tokens. Lossless.

arXiv 2605.20104. At some levels of the draft, checkpoints, the likeliest path is compared with a threshold: below it,
drafting ends and only the best nodes are kept. What is left of the tree's budget goes to the matrix M of Token
Recycling, followed from the last committed token on. The draft is a tree of EAGLE-3's head, or a chain of the draft
model.
"""

from functools import cache
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.drafters import Drafter
from specbench.engine.models.eagle_head import EagleHead, layers_read
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.speculate import Speculative
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Sampling, Scored, Stateless, Verdict, Watch
from specbench.methods.heads import eagle3
from specbench.methods.heads.eagle3 import EagleDrafter, Grown, Read, best_of, levels
from specbench.methods.lookup.recycling import Successors, grow, template

Share = Annotated[float, Field(ge=0, le=1)]


class Settings(Base):
    drafter: Literal["eagle3", "draft"] = Field(description="a tree of EAGLE-3's head, or a chain of the draft model")
    variant: Literal["graft", "root", "tail"] = Field(
        description="graft: as above; root: the draft never stops; tail: retrieval follows the draft's deepest token"
    )
    nodes: int = Field(ge=1, description="the most tokens of a tree, drafted and retrieved")
    checkpoints: tuple[Annotated[int, Field(ge=0)], ...] = Field(description="levels where drafting may end, from 0 on")
    thresholds: tuple[Share, ...] = Field(description="it ends where the likeliest path is less probable, for each")
    kept: tuple[Annotated[int, Field(ge=1)], ...] = Field(description="the most drafted tokens that are kept, for each")
    successors: int = Field(ge=1, description="the target's likeliest tokens that are kept after each token (k)")
    levels: int = Field(ge=1, description="the most levels of the retrieved tree")
    top_k: int = Field(ge=1, description="eagle3: children of a node, and nodes of a level that are expanded")
    depth: int = Field(ge=0, description="levels of the draft after the first one")
    head: str = Field(description="eagle3: trained head: a file, or `auto` (the one that ships with the pair)")


class Grafting:
    """What one text has taught of successors, where a draft stops, and what is retrieved for the rest of a tree."""

    def __init__(self, settings: Settings, top_k: int) -> None:
        self.settings, self.top_k = settings, top_k
        stages = zip(settings.thresholds, settings.kept, strict=True)
        self.stages = dict(zip(settings.checkpoints, stages, strict=True))
        self.template = cache(template)
        self.begin()

    def begin(self) -> None:
        self.successors = Successors(self.settings.successors)

    def grow(self, logits: Tensor, read: Read) -> Grown:
        """The drafted part of a tree over the context, whose next token `logits` [V] predict.

        The host waits for the device at each checkpoint.
        """
        settings, seen = self.settings, []
        stops = settings.variant != "root"
        most = settings.nodes if stops or not settings.kept else settings.kept[-1]
        for depth, level in enumerate(levels(logits, read, self.top_k, settings.depth)):
            seen.append(level)
            threshold, kept = self.stages.get(depth, (0.0, 0))
            if stops and threshold and float(level.values.max().exp()) < threshold:
                most = kept
                break
        return best_of(seen, min(most, settings.nodes))

    def learn_prompt(self, tokens: list[int], scored: Scored) -> None:
        """Learn from a part of the prompt, all of whose logits are there."""
        self.successors.learn(torch.tensor(tokens), scored.logits)

    def fill(self, draft: Draft, last: int) -> Draft:
        """The tree with what is retrieved: after `last`, the token before the tree, or after the deepest one.

        Tokens that are drafted there already are passed over for successors of the next ranks.
        """
        settings, self.last = self.settings, last
        tokens, parents = draft.tokens.tolist(), list(draft.parents or ())
        at = deepest(parents) if settings.variant == "tail" else -1
        taken = [token for token, parent in zip(tokens, parents, strict=True) if parent == at]
        ranks = self.template(settings.nodes - len(tokens), settings.levels, settings.successors)
        retrieved, follow = grow(self.successors, last if at < 0 else tokens[at], ranks, taken)
        parents += [at if parent < 0 else len(tokens) + parent for parent in follow]
        ids = torch.tensor(retrieved, dtype=torch.long, device=draft.tokens.device)
        return Draft(torch.cat([draft.tokens, ids]), None, tuple(parents))


def deepest(parents: list[int]) -> int:
    """The first of the deepest nodes of a tree; -1 if it has none."""
    depths = {-1: 0}
    for node, parent in enumerate(parents):
        depths[node] = depths[parent] + 1
    return max(depths, key=lambda node: depths[node])


class GraftedHead(EagleDrafter):
    """EAGLE-3's drafter with a tree that is grafted."""

    prompt_logits = 0

    def __init__(self, head: EagleHead, session: Session, layers: tuple[int, ...], settings: Settings) -> None:
        super().__init__(head, session, layers, settings.nodes + 1, settings.top_k, settings.depth)
        self.grafting = Grafting(settings, settings.top_k)

    def begin(self, prompt: list[int]) -> None:
        super().begin(prompt)
        self.grafting.begin()
        self.prompt, self.states = prompt, list[Tensor]()

    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        """The head reads the whole prompt when its last part is there."""
        assert scored.hidden is not None
        self.grafting.learn_prompt(tokens, scored)
        self.states.append(scored.hidden)
        if sum(map(len, self.states)) == len(self.prompt):
            super().observe_prompt(self.prompt, scored._replace(hidden=torch.cat(self.states)))
            self.states.clear()

    def grow(self, logits: Tensor, read: Read) -> Grown:
        return self.grafting.grow(logits, read)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of point masses at any temperature."""
        return self.grafting.fill(super().propose(context, gamma, sampling, rng), context[-1])


class GraftedChain(Drafter):
    """A draft model's likeliest tokens, one after another, and a tree that is grafted to them."""

    prompt_logits = 0

    def __init__(self, session: Session, settings: Settings) -> None:
        self.session, self.grafting = session, Grafting(settings, top_k=1)

    def begin(self, prompt: list[int]) -> None:
        self.session.restart(prompt)
        self.grafting.begin()

    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        self.grafting.learn_prompt(tokens, scored)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of point masses at any temperature."""
        logits = self.session.catch_up(context).logits[-1]
        chain = self.grafting.grow(logits, lambda tokens, _: self.session.forward(tokens).logits)
        return self.grafting.fill(Draft(chain.tokens, None, tuple(chain.parents.tolist())), context[-1])


class Graft(Speculative, Stateless):
    """Speculative decoding with grafted trees. The matrix is new for each text."""

    lossless = True
    drafter: GraftedHead | GraftedChain

    def __init__(
        self, target: Session, drafter: GraftedHead | GraftedChain, settings: Settings, hashes: dict[str, str]
    ) -> None:
        self.target, self.drafter, self.settings, self.hashes = target, drafter, settings, hashes
        self.gamma, self.reach = settings.depth + 1, 1 + settings.nodes

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """The exact rule of trees. What each token teaches, accepted or not, is on its way to the host before."""
        grafting = self.drafter.grafting
        grafting.successors.learn_tree(grafting.last, draft, scored.logits)
        return exact_tree(draft, scored, sampling, rng)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses the draft model only for a chain. Raises UserError for settings, or a head, that do not fit."""
    counts = {len(settings.checkpoints), len(settings.thresholds), len(settings.kept)}
    if len(counts) > 1:
        raise UserError("graft: checkpoints, thresholds and kept have different lengths; give one of each for a stage")
    target = pair.session("target", watch)
    if settings.drafter == "draft":
        return Graft(target, GraftedChain(pair.session("draft", watch), settings), settings, {})
    head, hashes = eagle3.loaded(settings.head, pair)
    session = eagle3.head_session(head, pair, watch)
    return Graft(target, GraftedHead(head, session, layers_read(pair.models["target"]), settings), settings, hashes)
