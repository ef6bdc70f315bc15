"""RSD: recursive speculative decoding, trees drawn without replacement (Jeon et al., arXiv 2402.14160). Lossless.

A tree grows level by level, with one draft forward each (the last level is not fed). At T > 0 each row of a draft's
`probs` is the distribution that its token was drawn from, given the siblings drafted before it. Tokens of probability 0
are never drafted, so a level may have fewer tokens than were asked for. At T = 0 trees hold the likeliest tokens.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from specbench.config import UserError
from specbench.engine.accept import Accept
from specbench.engine.drafters import Drafter
from specbench.engine.ids import to_device
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import pick, probabilities, waits, wide
from specbench.engine.session import Session
from specbench.engine.speculate import Speculative
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Sampling, Stateless, Watch
from specbench.methods.rules import TreeSettings, is_exact


class Settings(TreeSettings):
    """A tree has a fixed size: no policy chooses a draft length, and no draft ends at an end token."""

    gamma: int = Field(ge=1, description="levels of the tree (γ)")
    search: Literal["beam", "constant"] = Field(description="beam: stochastic beam search (RSD-S); constant: RSD-C")
    width: int = Field(ge=1, description="beam: tokens of a level")
    branching: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        description="constant: children of each token, level by level; 1 in levels that are not listed"
    )

    def sizes(self) -> list[int]:
        """The most tokens of each level."""
        if self.search == "beam":
            return [self.width] * self.gamma
        return list(accumulate([*self.branching, *[1] * (self.gamma - len(self.branching))], mul))


class TreeSpeculation(Speculative, Stateless):
    """Draft a tree of γ levels and at most `most` tokens, score it by one target forward, keep the path that passes.

    The test is recursive rejection sampling (`engine.trees`), unless `accept` is another one.
    """

    def __init__(self, target: Session, drafter: Drafter, gamma: int, most: int, accept: Accept = exact_tree) -> None:
        self.target, self.drafter, self.gamma, self.accept = target, drafter, gamma, accept
        self.lossless = is_exact(accept)
        self.reach = most + 1


class TreeDrafter(Drafter):
    """A draft model that grows a tree. Its cache keeps only the text: accepted tokens are read again."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def begin(self, prompt: list[int]) -> None:
        self.session.restart(prompt)


class Branching(TreeDrafter):
    """RSD-C (arXiv 2402.14160, Algorithm 3): each token of a level has the same number of children.

    Children are drawn without replacement, in the order in which they are tested (Gumbel-top-k, here as a race: see
    `draw_distinct`). `counts` holds the number for each level; after its last level, each token has one child. At
    T = 0 the children are the likeliest tokens.
    """

    def __init__(self, session: Session, counts: Sequence[int]) -> None:
        super().__init__(session)
        self.counts = tuple(counts)

    def children(self, level: int, nodes: int) -> list[int]:
        """How many children each of the `nodes` tokens of a level has (the context is level 0)."""
        return [self.counts[level] if level < len(self.counts) else 1] * nodes

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """γ levels. Tokens without children are not read. At T > 0 a copy to the host finds the impossible tokens."""
        logits = self.session.catch_up(context).logits[-1:]
        tokens: list[Tensor] = []
        rows: list[Tensor] = []
        parents: list[int] = []
        above, counts = [-1], self.children(0, 1)  # the parents of the next level, and how many children each has
        read = {-1: -1}  # node -> its place among those that the draft model has read
        for level in range(gamma):
            counts = [min(count, logits.shape[-1]) for count in counts]
            most = max(counts)  # drawn for each; the first ones of each are taken
            taken = to_device([at * most + i for at, count in enumerate(counts) for i in range(count)], logits.device)
            if sampling.greedy:
                tokens.append(logits.topk(most).indices.flatten()[taken])
            else:
                q, place = probabilities(logits, sampling), taken // most
                tokens.append(draw_distinct(q, most, rng).flatten()[taken])
                rows.append(given_earlier(q[place], tokens[-1], place))
            start = len(parents)
            parents += [node for node, count in zip(above, counts, strict=True) for _ in range(count)]
            following = self.children(level + 1, len(parents) - start)
            fed = [place for place, count in enumerate(following) if count]
            if level == gamma - 1 or not fed:
                break
            above, counts = [start + place for place in fed], [following[place] for place in fed]
            chosen = tokens[-1] if len(fed) == len(following) else tokens[-1][to_device(fed, logits.device)]
            logits = self.session.forward(chosen, parents=[read[parents[node]] for node in above]).logits
            for node in above:
                read[node] = len(read) - 1
        drafted = torch.cat(tokens)
        if sampling.greedy:
            return Draft(drafted, None, tuple(parents))
        return possible(drafted, torch.cat(rows), parents)


class Beam(TreeDrafter):
    """RSD-S (arXiv 2402.14160, Algorithm 4): each level has the `width` best children of the level above.

    At T > 0 this is stochastic beam search (Kool et al., arXiv 1903.06059): the sequences of a level are drawn without
    replacement from the draft model. How many children a token has depends on earlier draws, but which tokens they are
    does not: a child is in the beam by its perturbed value alone, and which token has the largest one is independent of
    how large that is. So recursive rejection stays lossless. At T = 0 it is beam search.
    """

    def __init__(self, session: Session, width: int) -> None:
        super().__init__(session)
        self.width = width

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """γ levels. The host lays out attention, so each level's parents are copied there."""
        logits = self.session.catch_up(context).logits[-1:]
        # For each node of the level above: log q of its sequence, and its perturbed log q.
        score = perturbed = torch.zeros(1, dtype=wide(logits).dtype, device=logits.device)
        tokens: list[Tensor] = []
        rows: list[Tensor] = []
        parents: list[int] = []
        first = -1  # the first node of the level above
        for level in range(gamma):
            # Greedy decoding has no temperature; beams are ranked by the model's own probabilities.
            q = probabilities(logits, Sampling(1.0) if sampling.greedy else sampling)
            scores = score[:, None] + q.log()  # [n, V]
            values = scores if sampling.greedy else perturb(scores, perturbed, rng)
            best = values.flatten().topk(min(self.width, values.numel()))
            branch, token = best.indices // q.shape[-1], best.indices % q.shape[-1]
            *here, count = torch.cat([branch, best.values.isfinite().sum()[None]]).tolist()
            branch, token, perturbed = branch[:count], token[:count], best.values[:count]
            score = scores.flatten()[best.indices[:count]]
            tokens.append(token)
            if not sampling.greedy:
                rows.append(given_earlier(q[branch], token, branch))
            here = [first + i for i in here[:count]]
            first = len(parents)
            parents += here
            if level < gamma - 1:
                logits = self.session.forward(token, parents=here).logits
        return Draft(torch.cat(tokens), None if sampling.greedy else torch.cat(rows), tuple(parents))


class Independent(TreeDrafter):
    """Chains drawn independently of each other; the tree holds a prefix that several of them share only once (T > 0).

    A token that an earlier chain drew in the same place stays in the tree, as a leaf: the draft offered it twice, and
    each offer takes its share of q from the target, so leaving one out would not be lossless. The leaf hardly ever
    passes, since p has nothing left where the token was just rejected (but for rounding). Its chain goes on under the
    first such token. That is lossless: after a token that stands come the next tokens of all chains that have reached
    it, drawn independently from the same q, and how many chains those are was settled before any of them was drawn.
    Without `merge`, all chains stay apart: traversal verification needs what follows a token to be drawn for it alone.
    """

    def __init__(self, session: Session, chains: int, merge: bool = True) -> None:
        super().__init__(session)
        self.chains, self.merge = chains, merge

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """Chains of γ tokens. The draft model reads each separately; the host merges shared prefixes at the end."""
        assert not sampling.greedy, "greedy chains would all be the same"
        logits = self.session.catch_up(context).logits[-1:].expand(self.chains, -1)
        tokens: list[Tensor] = []
        rows: list[Tensor] = []
        for level in range(gamma):
            rows.append(probabilities(logits, sampling))
            tokens.append(pick(rows[-1], rng))
            if level < gamma - 1:
                above = [-1] * self.chains if level == 0 else range((level - 1) * self.chains, level * self.chains)
                logits = self.session.forward(tokens[-1], parents=above).logits
        count = self.chains * gamma
        apart = tuple(max(-1, node - self.chains) for node in range(count))
        parents = merged(torch.stack(tokens).tolist()) if self.merge else apart
        return Draft(torch.cat(tokens), torch.cat(rows), parents)


def merged(levels: list[list[int]]) -> tuple[int, ...]:
    """The parents of all tokens of the chains, `levels` [γ][chains]: a chain goes on under the first equal prefix."""
    parents: list[int] = []
    above = [-1] * len(levels[0])  # the parent of each chain's next token
    for level in levels:
        first: dict[tuple[int, int], int] = {}
        parents += above
        places = enumerate(zip(above, level, strict=True), len(parents) - len(level))
        above = [first.setdefault(place, node) for node, place in places]
    return tuple(parents)


def draw_distinct(q: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """`count` different tokens [n, count] of each distribution [n, V], in the order in which they are drawn.

    They are the first arrivals of a race with rates q; Gumbel-top-k is its logarithm. Impossible tokens come last.
    """
    return (q / waits(q, rng)).topk(count).indices


def perturb(scores: Tensor, highest: Tensor, rng: torch.Generator) -> Tensor:
    """Gumbel variables [n, V] with locations `scores`, given that the largest of each row is `highest` [n].

    Equations 23 to 25 of Kool et al., in their numerically stable form; -inf stays -inf.
    """
    noisy = scores - waits(scores, rng).log()
    below = noisy - noisy.max(-1, keepdim=True).values
    v = highest[:, None] - noisy + torch.where(below > -0.7, (-below.expm1()).log(), (-below.exp()).log1p())
    return highest[:, None] - v.clamp(min=0) - (-v.abs()).exp().log1p()


def given_earlier(q: Tensor, tokens: Tensor, places: Tensor) -> Tensor:
    """Each row of q [n, V] without the earlier tokens [n] of the same place [n], renormalised.

    A row with nothing left is NaN; its token is not possible.
    """
    count = len(tokens)
    before = (places[:, None] == places).tril(-1)  # [n, n]
    gone = torch.zeros_like(q).scatter_add_(1, tokens.expand(count, count), before.to(q.dtype))
    left = q.masked_fill(gone > 0, 0.0)
    return left / left.sum(-1, keepdim=True)


def possible(tokens: Tensor, probs: Tensor, parents: Sequence[int]) -> Draft:
    """The tree [K] without tokens of probability 0 and their descendants. Copies one column [K] to the host."""
    positive = (probs.gather(-1, tokens[:, None])[:, 0] > 0).tolist()
    new: dict[int, int] = {-1: -1}  # node -> its index in the smaller tree
    for node, parent in enumerate(parents):
        if positive[node] and parent in new:
            new[node] = len(new) - 1
    kept = [node for node in new if node >= 0]
    shape = tuple(new[parents[node]] for node in kept)
    if len(kept) == len(parents):
        return Draft(tokens, probs, shape)
    at = torch.tensor(kept, device=tokens.device)
    return Draft(tokens[at], probs[at], shape)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Raises UserError for a `branching` of more than γ levels."""
    constant = settings.search == "constant"
    if constant and len(settings.branching) > settings.gamma:
        raise UserError(
            f"rsd: branching names {len(settings.branching)} levels, but gamma is {settings.gamma}; change one of them"
        )
    most = sum(settings.sizes())
    session = pair.session("draft", watch)
    drafter = Branching(session, settings.branching) if constant else Beam(session, settings.width)
    return TreeSpeculation(pair.session("target", watch), drafter, settings.gamma, most, settings.accept())
