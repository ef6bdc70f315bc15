"""Token Recycling: the target's likeliest tokens after every token that it reads draft the next rounds. Lossless.

Luo et al., arXiv 2408.08696. A matrix M holds k successors of each token, likeliest first. Every forward of a draft
tree refreshes it, rejected tokens included. A tree follows M from the last token on by a fixed template of ranks. No
draft model, no training, no datastore.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError
from torch import Tensor

from specbench.config import Settings as Base
from specbench.engine.drafters import Drafter
from specbench.engine.ids import to_device
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.speculate import Speculative
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Round, Sampling, Scored, Stateless, Verdict, Watch


class Settings(Base):
    successors: int = Field(ge=1, description="the target's likeliest tokens that are kept after each token (k)")
    nodes: int = Field(ge=1, description="the most tokens of a tree")
    gamma: int = Field(ge=1, description="the most levels of a tree (γ)")
    template: dict[str, Annotated[int, Field(ge=1)]] = Field(
        description="how many ranks follow each path of ranks, such as `0,1`; {}: the likeliest paths, if each rank is "
        "half as likely as the one before"
    )
    unknown: Literal["zero", "none"] = Field(
        description="what follows a token that was never read: token 0, as in a matrix of zeros, or nothing"
    )
    prompt: bool = Field(description="true: all tokens of a prompt teach successors; false: only its last one does")
    memory: Literal["task", "text"] = Field(description="how long successors are kept: for all texts of a task, or one")

    @field_validator("template")
    @classmethod
    def _of_nodes(cls, counts: dict[str, int]) -> dict[str, int]:
        for path in counts:
            above, _, rank = path.rpartition(",")
            if path and not (rank.isdecimal() and int(rank) < counts.get(above, 0)):
                raise PydanticCustomError("template", f"{path} is no node, so nothing can follow it")
        return counts


class Successors:
    """The matrix M: for each token that the target has read, the k likeliest next ones, best first.

    A token that was read several times has the successors of its last reading; within a forward, of its last place.
    `unknown` are those of tokens that were never read.
    """

    def __init__(self, count: int, unknown: Sequence[int] = ()) -> None:
        self.count, self.unknown = count, list(unknown)
        self._rows: dict[int, list[int]] = {}
        self._read: list[tuple[Tensor, Tensor]] = []  # on their way to the host: tokens [n], successors [n, k]

    def learn(self, tokens: Tensor, logits: Tensor) -> None:
        """Note the likeliest successors of tokens [n] by logits [n, V] after them. The host does not wait."""
        best = logits.topk(min(self.count, logits.shape[-1])).indices
        self._read.append((tokens.to("cpu", non_blocking=True), best.to("cpu", non_blocking=True)))

    def learn_tree(self, last: int, draft: Draft, logits: Tensor) -> None:
        """Learn from the token before a tree and from each of its tokens, by logits [K + 1, V] after them."""
        self.learn(torch.cat([to_device([last], draft.tokens.device), draft.tokens]), logits)

    def of(self, token: int) -> list[int]:
        """The successors of a token, best first. Call it after a wait for the device."""
        return self.rows().get(token, self.unknown)

    def rows(self) -> dict[int, list[int]]:
        """All that is known. Call it after a wait for the device."""
        for tokens, best in self._read:
            self._rows.update(zip(tokens.tolist(), best.tolist(), strict=True))
        self._read.clear()
        return self._rows

    def forget_last(self) -> None:
        """Forget what the last forward taught, if nothing was asked since."""
        del self._read[-1:]


Template = list[tuple[int, int]]  # (parent, rank) of each node, a parent before its children


def of_counts(counts: Mapping[str, int], settings: Settings) -> Template:
    """The tree of a setting `template`, level by level; of too many nodes those that are likeliest for `template`."""
    paths: list[tuple[int, ...]] = [()]
    for path in paths:
        if len(path) < settings.gamma:
            children = counts.get(",".join(map(str, path)), 0)
            paths += ((*path, rank) for rank in range(min(children, settings.successors)))
    chosen = sorted(paths[1:], key=lambda path: (sum(path) + len(path), len(path), path))[: settings.nodes]
    ordered = sorted(chosen, key=lambda path: (len(path), path))
    places = {path: place for place, path in enumerate(ordered)}
    return [(places.get(path[:-1], -1), path[-1]) for path in ordered]


def template(nodes: int, levels: int, ranks: int) -> Template:
    """The `nodes` likeliest paths of ranks as a tree: (parent, rank) of each node, a parent before its children.

    The token of rank r = 0, 1, … is taken to be right with the probability 2^-(r + 1), so that a path is the likelier
    the smaller the sum of its ranks, each counted from 1. Of equal paths the shorter goes first, then smaller ranks.
    """
    tree: Template = []
    heap: list[tuple[int, int, tuple[int, ...], int]] = [(rank + 1, 1, (rank,), -1) for rank in range(ranks)]
    while heap and len(tree) < nodes:
        total, level, path, parent = heapq.heappop(heap)
        if level < levels:
            for rank in range(ranks):
                heapq.heappush(heap, (total + rank + 1, level + 1, (*path, rank), len(tree)))
        tree.append((parent, path[-1]))
    return tree


class Recycler(Drafter):
    """Drafts what `successors` say of the last token, of its successors, and so on, by a template of ranks."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        computed = template(settings.nodes, settings.gamma, settings.successors)
        self.template = of_counts(settings.template, settings) if settings.template else computed
        self.prompt_logits = 0 if settings.prompt else 1
        self.forget()

    def forget(self) -> None:
        """Know nothing."""
        self.successors = Successors(self.settings.successors, (0,) if self.settings.unknown == "zero" else ())

    def begin(self, prompt: list[int]) -> None:
        """Start on a new text."""
        if self.settings.memory == "text":
            self.forget()

    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        self.successors.learn(torch.tensor(tokens[-len(scored.logits) :]), scored.logits)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of point masses at any temperature."""
        self.last = context[-1]
        tokens, parents = grow(self.successors, self.last, self.template)
        ids = torch.tensor(tokens, dtype=torch.long, device=self.device)
        return Draft(ids, None, parents if tokens else None)


def grow(
    successors: Successors, last: int, template: Sequence[tuple[int, int]], taken: Collection[int] = ()
) -> tuple[list[int], tuple[int, ...]]:
    """The tree after the token `last` by a template: tokens [K] and parents [K].

    Tokens that are `taken` do not follow `last`: the next ranks do.
    """
    tokens: list[int] = []
    parents: list[int] = []
    nodes: dict[int, int] = {-1: -1}  # node of the template -> node of the tree
    for place, (parent, rank) in enumerate(template):
        if parent not in nodes:
            continue
        above = nodes[parent]
        row = successors.of(last if above < 0 else tokens[above])
        if above < 0:
            row = [token for token in row if token not in taken]
        if rank < len(row):
            nodes[place] = len(tokens)
            tokens.append(row[rank])
            parents.append(above)
    return tokens, tuple(parents)


State = list[list[int]]  # a row for each token that was read: the token, then its successors


class Recycling(Speculative, Stateless):
    """Token Recycling."""

    lossless = True
    drafter: Recycler

    def __init__(self, target: Session, settings: Settings) -> None:
        self.target, self.settings = target, settings
        self.drafter = Recycler(settings, target.device)
        self.gamma, self.reach = settings.gamma, 1 + settings.nodes

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """The exact rule of trees. What each token teaches, accepted or not, is on its way to the host before."""
        self.drafter.successors.learn_tree(self.drafter.last, draft, scored.logits)
        return exact_tree(draft, scored, sampling, rng)

    def ended(self, last: Round) -> None:
        """Forget what the last forward taught if the text ended within its draft, as the official code does."""
        if last.truncated:
            self.drafter.successors.forget_last()

    def reset(self, task: str = "") -> None:
        self.drafter.forget()

    def state(self) -> State | None:
        """What is known of each token; None where it is forgotten after each text."""
        if self.settings.memory == "text":
            return None
        return [[token, *best] for token, best in sorted(self.drafter.successors.rows().items())]

    def restore(self, state: Any) -> None:
        if state is not None and state != self.state():
            self.drafter.forget()
            self.drafter.successors.rows().update({token: best for token, *best in state})

    def added(self, state: Any, before: Any, after: Any) -> Any:
        if state is None:
            return None
        known, unchanged = {row[0]: row[1:] for row in state}, set(map(tuple, before))
        known.update({row[0]: row[1:] for row in after if tuple(row) not in unchanged})
        return [[token, *best] for token, best in sorted(known.items())]


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target."""
    return Recycling(pair.session("target", watch), settings)
