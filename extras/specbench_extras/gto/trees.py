"""The trees that a head and its reference draft after places of a text, and what the target says of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.models.eagle_head import EagleHead
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.sampling import wide
from specbench.engine.session import Session
from specbench.engine.speculate import read_once
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Sampling, Scored
from specbench.methods.heads.eagle3 import EagleDrafter, Grown
from specbench_extras.gto.recipe import GroupRecipe
from specbench_extras.gto.reward import expected_lengths, tree_reward


@dataclass(frozen=True)
class Judged:
    """A tree after one place, and that of the reference."""

    reward: float  # r of the head's tree
    reference: float  # r of the reference's
    branch: list[int]  # of the head's tree, in the draft vocabulary: what a greedy target accepts


class Nursery:
    """Grows the trees of two heads of one draft vocabulary, without gradients, as they grow when decoding."""

    def __init__(
        self, target: Session, heads: tuple[EagleHead, EagleHead], layers: tuple[int, ...], recipe: GroupRecipe
    ) -> None:
        """`heads` are the one that learns, and the reference."""
        self.target, self.layers, self.recipe = target, layers, recipe
        sizes = recipe.total_tokens, recipe.top_k, recipe.depth
        sessions = [Session(head, "draft", None, head.config.vocab_size, EAGER) for head in heads]
        self.drafters = [
            EagleDrafter(head, session, layers, *sizes) for head, session in zip(heads, sessions, strict=True)
        ]

    @torch.inference_mode()
    def read(self, tokens: list[int]) -> Tensor:
        """The target's states [n, T D] after each token of a text, which its cache and the heads' then hold."""
        self.target.truncate(0)
        states = self.target.forward(tokens, keep=1, hidden=self.layers).hidden
        assert states is not None
        for drafter in self.drafters:
            drafter.session.truncate(0)
            drafter.session.forward(tokens[1:], keep=1, features=drafter.head.fuse(states[:-1]))
        return states

    @torch.inference_mode()
    def judged(self, tokens: list[int], states: Tensor, places: Sequence[int]) -> list[Judged]:
        """For each place, rising, the trees after the tokens up to and with it. `read` has read the text.

        The last place comes first, as a cache can only be cut.
        """
        backwards = [self.at(tokens[: place + 1], states) for place in reversed(places)]
        return backwards[::-1]

    def at(self, context: list[int], states: Tensor) -> Judged:
        rewards, branches = [], []
        for drafter in self.drafters:
            grown = self.grown(drafter, context, states)
            draft = Draft(drafter.ids[grown.tokens], None, tuple(grown.parents.tolist()))
            self.target.truncate(len(context) - 1)
            scored = read_once(self.target, context[-1:], draft)
            rewards.append(tree_reward(expected_lengths(chances(draft, scored), draft.parents or ()), self.recipe.eta))
            path = exact_tree(draft, scored, Sampling(), torch.Generator(self.target.device)).path
            branches.append(grown.tokens[list(path)].tolist())
        return Judged(rewards[0], rewards[1], branches[0])

    def grown(self, drafter: EagleDrafter, context: list[int], states: Tensor) -> Grown:
        before = len(context) - 1
        drafter.session.truncate(before - 1)
        drafter.unread = drafter.head.fuse(states[before - 1 : before])
        return drafter.tree(context)


def chances(draft: Draft, scored: Scored) -> list[float]:
    """The target's probability of each node of a tree, after those on its path."""
    assert draft.rows is not None
    probs: list[float] = wide(scored.logits).softmax(-1)[draft.rows, draft.tokens].tolist()
    return probs
