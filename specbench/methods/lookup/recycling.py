"""Token Recycling: the target's likeliest tokens after every token that it reads draft the next rounds. Lossless.

Luo et al., arXiv 2408.08696. A matrix M holds k successors of each token, likeliest first. Every forward refreshes it:
that of the prompt, and those of whole draft trees, rejected tokens included. A tree follows M from the last token on by
a fixed template of ranks. No draft model, no training, no datastore.
"""

import heapq
from collections.abc import Collection, Iterator, Sequence

import torch
from pydantic import Field
from torch import Tensor

from specbench.config import Settings as Base
from specbench.engine.ids import to_device
from specbench.engine.lengths import Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.speculate import read_in_chunks, read_once, speculate
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Round, Sampling, Scored, Stateless, Watch
from specbench.methods.trees.rsd import refuse_long

CHUNK = 512  # tokens of a prompt that are read at a time: the logits of a long prompt would fill the memory


class Settings(Base):
    successors: int = Field(ge=1, description="the target's likeliest tokens that are kept after each token (k)")
    nodes: int = Field(ge=1, description="the most tokens of a tree")
    gamma: int = Field(ge=1, description="the most levels of a tree (γ)")


class Successors:
    """The matrix M of one text: for each token that the target has read, the k likeliest next ones, best first.

    A token that was read several times has the successors of its last reading; within a forward, of its last place.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._rows: dict[int, list[int]] = {}
        self._read: list[tuple[Tensor, Tensor]] = []  # on their way to the host: tokens [n], successors [n, k]

    def learn(self, tokens: Tensor, logits: Tensor) -> None:
        """Note the likeliest successors of tokens [n] by logits [n, V] after them. The host does not wait."""
        best = logits.topk(min(self.count, logits.shape[-1])).indices
        self._read.append((tokens.to("cpu", non_blocking=True), best.to("cpu", non_blocking=True)))

    def learn_tree(self, recent: Sequence[int], draft: Draft, scored: Scored) -> Scored:
        """Learn from the token before a tree and from each of its tokens, whether they will be accepted or not."""
        self.learn(torch.cat([to_device(recent[-1:], draft.tokens.device), draft.tokens]), scored.logits)
        return scored

    def read(self, target: Session, prompt: list[int], hidden: Sequence[int] = ()) -> Scored:
        """Let the target read a prompt into an empty cache, and learn from every token of it.

        Returns logits of its last chunk, and the hidden states of all its tokens that `hidden` names.
        """
        states: list[Tensor] = []
        start = 0
        for scored in read_in_chunks(target, prompt, CHUNK, hidden):
            self.learn(torch.tensor(prompt[start : start + CHUNK]), scored.logits)
            start += CHUNK
            if scored.hidden is not None:
                states.append(scored.hidden)
        return Scored(scored.logits, hidden=torch.cat(states) if states else None)

    def of(self, token: int) -> list[int]:
        """The successors of a token; none if the target has not read it. Call it after a wait for the device."""
        for tokens, best in self._read:
            self._rows.update(zip(tokens.tolist(), best.tolist(), strict=True))
        self._read.clear()
        return self._rows.get(token, [])


def template(nodes: int, levels: int, ranks: int) -> list[tuple[int, int]]:
    """The `nodes` likeliest paths of ranks as a tree: (parent, rank) of each node, a parent before its children.

    The token of rank r = 0, 1, … is taken to be right with the probability 2^-(r + 1), so that a path is the likelier
    the smaller the sum of its ranks, each counted from 1. Of equal paths the shorter goes first, then smaller ranks.
    """
    tree: list[tuple[int, int]] = []
    heap: list[tuple[int, int, tuple[int, ...], int]] = [(rank + 1, 1, (rank,), -1) for rank in range(ranks)]
    while heap and len(tree) < nodes:
        total, level, path, parent = heapq.heappop(heap)
        if level < levels:
            for rank in range(ranks):
                heapq.heappush(heap, (total + rank + 1, level + 1, (*path, rank), len(tree)))
        tree.append((parent, path[-1]))
    return tree


class Recycler:
    """Drafts what `successors` say of the last token, of its successors, and so on, by a template of ranks."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.template = template(settings.nodes, settings.gamma, settings.successors)
        self.lengths = Lengths()

    def begin(self, prompt: list[int]) -> None:
        """Start on a new text. Its `successors` are set by the prefill, which comes later."""
        self.successors = Successors(self.settings.successors)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of point masses at any temperature. Paths through tokens that the target has not read end there."""
        tokens, parents = grow(self.successors, context[-1], self.template)
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


class Recycling(Stateless):
    """Token Recycling with a matrix that is new for each text (the official code keeps it from text to text)."""

    penalised = True
    lossless = True

    def __init__(self, target: Session, settings: Settings) -> None:
        self.target, self.settings = target, settings
        self.drafter = Recycler(settings, target.device)
        self.reach = 1 + settings.nodes

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        gamma = self.settings.gamma
        return speculate(
            self.target, self.drafter, exact_tree, gamma, prompt, sampling, rng, self.score, prefill=self.prefill
        )

    def prefill(self, target: Session, prompt: list[int]) -> Scored:
        return self.drafter.successors.read(target, prompt)

    def score(self, target: Session, recent: Sequence[int], draft: Draft) -> Scored:
        return self.drafter.successors.learn_tree(recent, draft, read_once(target, recent, draft))


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for rounds longer than the pair's context."""
    refuse_long(f"recycling: its tree has up to {settings.nodes} tokens", settings.nodes, pair)
    return Recycling(pair.session("target", watch), settings)
