"""Trees of a draft model with several tokens for one place, drawn without replacement or independently.

A tree grows level by level, a draft forward each (the last level is not fed). At T > 0 each row of a draft's `probs` is
what its token was drawn from, given the tokens drafted before it in the same place; tokens of probability 0 are never
drafted, so that there may be fewer than were asked for. At T = 0 trees hold the likeliest tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.decoding.lengths import Lengths
from specbench.decoding.sampling import pick, probabilities, wide
from specbench.decoding.session import Session
from specbench.decoding.types import Draft, Sampling


class TreeDrafter:
    """A draft model that grows a tree. Its cache keeps the text alone: what was accepted is read again."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lengths = Lengths()  # trees are of a size that is settled beforehand

    def begin(self, prompt: list[int]) -> None:
        self.session.restart(prompt)


class Branching(TreeDrafter):
    """RSD-C (arXiv 2402.14160, Algorithm 3): each token of a level has the same number of children.

    They are drawn without replacement, in the order in which they are tested (Gumbel-top-k, here as a race: see
    `drawn_apart`). `counts` are by level; those behind its last one have a child for each token. T = 0: the likeliest.
    """

    def __init__(self, session: Session, counts: Sequence[int]) -> None:
        super().__init__(session)
        self.counts = tuple(counts)

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """γ levels. What is not possible is found by one copy to the host, at the end (T > 0)."""
        logits = self.session.catch_up(context).logits[-1:]
        tokens: list[Tensor] = []
        rows: list[Tensor] = []
        parents: list[int] = []
        above = [-1]  # the nodes that the next level follows
        for level in range(gamma):
            count = min(self.counts[level] if level < len(self.counts) else 1, logits.shape[-1])
            if sampling.greedy:
                tokens.append(logits.topk(count).indices.flatten())
            else:
                q = probabilities(logits, sampling)
                tokens.append(drawn_apart(q, count, rng).flatten())
                place = torch.arange(len(above), device=q.device).repeat_interleave(count)
                rows.append(given_earlier(q[place], tokens[-1], place))
            here = [node for node in above for _ in range(count)]
            above = list(range(len(parents), len(parents) + len(here)))
            parents += here
            if level < gamma - 1:
                logits = self.session.forward(tokens[-1], parents=here).logits
        drafted = torch.cat(tokens)
        if sampling.greedy:
            return Draft(drafted, None, tuple(parents))
        return possible(drafted, torch.cat(rows), parents)


class Beam(TreeDrafter):
    """RSD-S (arXiv 2402.14160, Algorithm 4): each level has the `width` best children of the level above.

    At T > 0 by stochastic beam search (Kool et al., arXiv 1903.06059): sequences of a level are drawn without
    replacement from the draft model. How many children a token has depends on what was drawn before, but what each of
    them is does not depend on whether there is one: that is a matter of the perturbed value alone, and which token has
    the largest is independent of how large it is. So recursive rejection stays lossless. T = 0: beam search.
    """

    def __init__(self, session: Session, width: int) -> None:
        super().__init__(session)
        self.width = width

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """γ levels. Attention is laid out by the host, so each level costs a copy of its parents there."""
        logits = self.session.catch_up(context).logits[-1:]
        # Of the nodes of the level above: log q of the sequence up to there, and the same perturbed.
        score = perturbed = torch.zeros(1, dtype=wide(logits).dtype, device=logits.device)
        tokens: list[Tensor] = []
        rows: list[Tensor] = []
        parents: list[int] = []
        first = -1  # node of the level above
        for level in range(gamma):
            # Greedy decoding has no temperature; its beams are those of the model as it is.
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
    """Chains drawn independently of each other; where they begin alike, the tree holds their beginning once (T > 0).

    A token that was drawn before in its place stays in the tree, as a leaf: its test takes from the target what the
    draft was given twice, so leaving it out would not be lossless. It hardly ever passes, since p has nothing left
    where it was just rejected (but for rounding), and its chain goes on under the first of its kind. That is lossless:
    behind a token that stands there are the next tokens of all chains that have come there, drawn independently from
    the same q. How many chains those are was settled before any of these tokens was drawn.
    """

    def __init__(self, session: Session, chains: int) -> None:
        super().__init__(session)
        self.chains = chains

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """Chains of γ tokens. The draft model reads each by itself; the host learns at the end which begin alike."""
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
        return Draft(torch.cat(tokens), torch.cat(rows), merged(torch.stack(tokens).tolist()))


def merged(levels: list[list[int]]) -> tuple[int, ...]:
    """Parents of chains' tokens [γ][chains], level by level: each goes on under the first that has the same tokens."""
    parents: list[int] = []
    above = [-1] * len(levels[0])  # of each chain, the token that its next one follows
    for level in levels:
        first: dict[tuple[int, int], int] = {}
        parents += above
        places = enumerate(zip(above, level, strict=True), len(parents) - len(level))
        above = [first.setdefault(place, node) for node, place in places]
    return tuple(parents)


def drawn_apart(q: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """`count` different tokens [n, count] of each distribution [n, V], in the order in which they are drawn.

    Those of the first arrivals of a race with rates q; Gumbel-top-k is its logarithm. Impossible tokens come last.
    """
    return (q / race(q, rng)).topk(count).indices


def race(like: Tensor, rng: torch.Generator) -> Tensor:
    """Independent waiting times of rate 1, none of them 0 (see `sampling.pick`)."""
    return torch.empty_like(like).exponential_(generator=rng).clamp_(min=torch.finfo(like.dtype).eps / 4)


def perturb(scores: Tensor, highest: Tensor, rng: torch.Generator) -> Tensor:
    """Gumbel variables [n, V] with locations `scores`, given that the largest of each row is `highest` [n].

    Equations 23 to 25 of Kool et al., the form that keeps its digits; -inf stays where it is.
    """
    noisy = scores - race(scores, rng).log()
    below = noisy - noisy.max(-1, keepdim=True).values
    v = highest[:, None] - noisy + torch.where(below > -0.7, (-below.expm1()).log(), (-below.exp()).log1p())
    return highest[:, None] - v.clamp(min=0) - (-v.abs()).exp().log1p()


def given_earlier(q: Tensor, tokens: Tensor, places: Tensor) -> Tensor:
    """Distributions q [n, V] without the tokens [n] that stand before in the same place [n], renormalised.

    A row with nothing left is NaN; its token is not possible.
    """
    count = len(tokens)
    before = (places[:, None] == places).tril(-1)  # [n, n]
    gone = torch.zeros_like(q).scatter_add_(1, tokens.expand(count, count), before.to(q.dtype))
    left = q.masked_fill(gone > 0, 0.0)
    return left / left.sum(-1, keepdim=True)


def possible(tokens: Tensor, probs: Tensor, parents: Sequence[int]) -> Draft:
    """The tree [K] without tokens of probability 0 and what follows them. Reads one column [K] from the device."""
    fine = (probs.gather(-1, tokens[:, None])[:, 0] > 0).tolist()
    new: dict[int, int] = {-1: -1}
    for node, parent in enumerate(parents):
        if fine[node] and parent in new:
            new[node] = len(new) - 1
    kept = [node for node in new if node >= 0]
    shape = tuple(new[parents[node]] for node in kept)
    if len(kept) == len(parents):
        return Draft(tokens, probs, shape)
    at = torch.tensor(kept, device=tokens.device)
    return Draft(tokens[at], probs[at], shape)
