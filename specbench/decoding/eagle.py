"""Drafts of EAGLE-3: a head behind the target's own hidden states grows a tree where it is sure of its tokens.

Which nodes it has follows EAGLE-2 (arXiv 2406.16858): a node's value is the product of the head's probabilities on its
path. At each level the best nodes go on, and of all that were met the best ones are drafted.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.lengths import Lengths
from specbench.decoding.sampling import wide
from specbench.decoding.session import LAST, Session
from specbench.decoding.trees import exact_tree
from specbench.decoding.types import Draft, Sampling, Scored, Verdict
from specbench.eagle_head import EagleHead

# Reads some nodes of the tree behind those it has read: draft tokens [k], the place of the node that each one follows
# (among the k that were read last; of the first k: none) -> logits [k, draft vocabulary] behind them.
Read = Callable[[Tensor, Tensor | None], Tensor]


class Grown(NamedTuple):
    """A tree: parents come before children, and those that follow the same one in the order of their probability."""

    tokens: Tensor  # [K]: of the draft vocabulary
    parents: Tensor  # [K]: the index of the one that it follows, -1: the context


def grow(logits: Tensor, read: Read, top_k: int, depth: int, most: int) -> Grown:
    """The `most` best nodes of a tree, or all of them, where `logits` [draft vocabulary] predict what follows.

    Each node that is read has `top_k` children, its likeliest. The first level's are all read; of each level behind,
    the `top_k` best, `depth` times in all. Among equals the earlier one is better. What is drafted is a tree, since no
    child is better than its parent, and each comes behind it. Nothing leaves the device.
    """
    gains, tokens = best_children(logits[None], top_k)  # [1, k]
    width = tokens.shape[1]
    levels = [(tokens[0], gains[0], torch.full_like(tokens[0], -1))]
    scores, tokens, followed = gains[0], tokens[0], None
    nodes = torch.arange(width, device=logits.device)  # of those that are read next: which they are among all
    seen = width
    for _ in range(depth):
        gains, children = best_children(read(tokens, followed), width)  # [k, k]
        values, children = (scores[:, None] + gains).flatten(), children.flatten()
        levels.append((children, values, nodes.repeat_interleave(width)))
        going = ranked(values)[:width]
        tokens, scores, followed, nodes = children[going], values[going], going // width, seen + going
        seen += len(values)
    every, values, parents = (torch.cat(column) for column in zip(*levels, strict=True))
    chosen = ranked(values)[:most].sort().values
    parents = parents[chosen]
    return Grown(every[chosen], torch.where(parents < 0, -1, torch.searchsorted(chosen, parents)))


def best_children(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Of each row of logits [n, V]: log-probabilities and tokens [n, k] of its likeliest, in falling order."""
    best = wide(logits).log_softmax(-1).topk(min(top_k, logits.shape[-1]))
    return best.values.clamp(max=0), best.indices


def ranked(values: Tensor) -> Tensor:
    """Indices [n] from the highest value [n] to the lowest, equal ones in their order."""
    return values.sort(descending=True, stable=True).indices


class EagleDrafter:
    """Drafts trees of at most `total_tokens` - 1 tokens and `depth` + 1 levels, by `depth` + 1 forwards of the head.

    The head's cache holds what is committed, read with the target's features. A tree is behind it only while it is
    drafted: its nodes are read with the head's own states. So it follows the target closely: `prefill`, `score` and
    `accept` stand for those of a method, and keep the target's hidden states.
    """

    def __init__(
        self, head: EagleHead, session: Session, layers: tuple[int, ...], total_tokens: int, top_k: int, depth: int
    ) -> None:
        self.head, self.session, self.layers = head, session, layers
        self.most, self.top_k, self.depth = total_tokens - 1, top_k, depth
        self.lengths = Lengths()  # its trees end by themselves

    def begin(self, prompt: list[int]) -> None:
        self.session.truncate(0)

    @torch.inference_mode()
    def prefill(self, target: Session, prompt: list[int]) -> Scored:
        """The target reads the prompt and the head what it can of it: a token is read with the feature before it."""
        target.truncate(0)
        scored = target.forward(prompt, keep=1, hidden=self.layers)
        assert scored.hidden is not None
        features = self.head.fuse(scored.hidden)
        if len(prompt) > 1:
            self.session.forward(prompt[1:], keep=1, features=features[:-1])
        self.unread = features[-1:]  # [n, D]: of the tokens before those of the context that the head has not read
        return scored

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of the head's likeliest tokens, at any temperature, for the target to test as point masses.

        The host is told which nodes were chosen once a level, for the mask of the next one, and once at the end.
        """
        session = self.session
        behind = session.forward(context[len(session) + 1 :], keep=1, hidden=LAST, features=self.unread)
        assert behind.hidden is not None
        states, first = behind.hidden[-1:], 0

        def read(tokens: Tensor, followed: Tensor | None) -> Tensor:
            nonlocal states, first
            if followed is None:
                parents, states = [-1] * len(tokens), states.expand(len(tokens), -1)
            else:
                parents, states = [first + place for place in followed.tolist()], states[followed]
                first += len(tokens)
            scored = session.forward(self.head.ids[tokens], parents=parents, hidden=LAST, features=states)
            assert scored.hidden is not None
            states = scored.hidden
            return scored.logits

        grown = grow(behind.logits[-1], read, self.top_k, self.depth, self.most)
        session.truncate(len(context) - 1)
        return Draft(self.head.ids[grown.tokens], None, tuple(grown.parents.tolist()))

    def score(self, target: Session, recent: Tensor, draft: Draft) -> Scored:
        """One forward of the target over the last committed token and the tree, with the states that the head reads."""
        assert draft.parents is not None
        parents = [-1, *(parent + 1 for parent in draft.parents)]
        return target.forward(torch.cat([recent[-1:], draft.tokens]), parents=parents, hidden=self.layers)

    @torch.inference_mode()
    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """The exact rule of trees; what stands is read by the head next, with the target's features."""
        assert scored.hidden is not None
        verdict = exact_tree(draft, scored, sampling, rng)
        self.unread = self.head.fuse(scored.hidden[[0, *(node + 1 for node in verdict.path)]])
        return verdict
