"""Fit EAGLE-3's head by its trees (GTO, arXiv 2509.22134): a policy gradient next to the loss of tokens.

The reward of a tree is how much longer its branches are expected to be accepted than those of the head that the
training began with. The rewards of adjacent places are compared with one another. The head then makes the branch that a
greedy target accepts likelier where its tree was better than its neighbours', and less likely where it was worse.
"""

import copy
import random
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specbench.base.hashes import stable_seed
from specbench.engine.models.eagle_head import EagleHead, layers_read
from specbench.engine.models.eagle_steps import draft_steps
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import wide
from specbench.engine.session import positions
from specbench.training.answered import Answered
from specbench.training.eagle3 import fit
from specbench_extras.gto.recipe import GroupRecipe
from specbench_extras.gto.reward import advantages, clipped_gain
from specbench_extras.gto.trees import Judged, Nursery


class GroupTraining(fit.Eagle3Training):
    """The training of EAGLE-3's head by tokens and trees; the head that it begins with stays as the reference."""

    recipe: GroupRecipe

    def __init__(
        self, pair: Pair, head: EagleHead, answered: Sequence[Answered], recipe: GroupRecipe, seed: int
    ) -> None:
        target = pair.models["target"]
        super().__init__(target, head, answered, recipe, seed)
        shared = {id(module): module for module in head.borrowed}
        self.reference = copy.deepcopy(head, shared).requires_grad_(False)
        self.nursery = Nursery(pair.session("target"), (head, self.reference), layers_read(target), recipe)

    def backward(self, batch: Sequence[Answered]) -> Tensor:
        total = super().backward(batch)
        drawn = [(document, self.places(document, self.step)) for document in batch]
        count = sum(len(places) for _, places in drawn)
        for document, places in drawn:
            if places and (loss := self.tree_loss(document, places)).requires_grad:
                loss = self.recipe.weight * loss / count
                loss.backward()
                total += loss.detach()
        return total

    def places(self, document: Answered, step: object) -> list[int]:
        """The places of a document after whose tokens trees grow: groups of adjacent ones, rising."""
        rng = random.Random(stable_seed(self.seed, "groups", step, document.name))
        room = positions(self.target) - document.prompt - self.recipe.depth - 2
        firsts = first_places(min(document.rows, room), self.recipe.group, self.recipe.groups, rng)
        return [document.prompt + first + i for first in firsts for i in range(self.recipe.group)]

    def tree_loss(self, document: Answered, places: Sequence[int]) -> Tensor:
        """-Σ min(s A, clip(s) A) over a document's places. Without an accepted branch, a place has no gradient."""
        judged, tokens, states = self.judged(document, places)
        branches = [one.branch for one in judged]
        if not any(branches):
            return torch.zeros((), device=self.device)
        rewards = torch.tensor([one.reward - one.reference for one in judged], device=self.device)
        gained = advantages(rewards.view(-1, self.recipe.group)).flatten()
        drafted = branch_chances(self.head, tokens, states, places, branches)
        with torch.no_grad():
            before = branch_chances(self.reference, tokens, states, places, branches)
        lengths = torch.tensor([max(1, len(branch)) for branch in branches], device=self.device)
        return -clipped_gain((drafted - before) / lengths, gained, self.recipe.ratio_clip).sum()

    def judged(self, document: Answered, places: Sequence[int]) -> tuple[list[Judged], Tensor, Tensor]:
        """The trees at places, the text [L] up to the last of them, and the target's states [L, T D]."""
        tokens = document.tokens[: places[-1] + 1]
        states = self.nursery.read(tokens)
        judged = self.nursery.judged(tokens, states, places)
        return judged, torch.tensor(tokens, device=self.device), states.clone()  # no tensor of inference mode

    def tree_rewards(self, answered: Iterable[Answered]) -> tuple[float, float]:
        """The mean reward of the head's trees, and of the reference's, at places that the seed decides; NaN of none."""
        judged = [
            one
            for document in answered
            if (places := self.places(document, "held out"))
            for one in self.judged(document, places)[0]
        ]
        rewards = [(one.reward, one.reference) for one in judged] or [(float("nan"),) * 2]
        mean, reference = (sum(column) / len(rewards) for column in zip(*rewards, strict=True))
        return mean, reference


def first_places(rows: int, size: int, count: int, rng: random.Random) -> list[int]:
    """The first places of at most `count` groups of `size` adjacent ones of `rows`, rising; no two groups share one."""
    if rows < size:
        return []
    firsts = range(rng.randrange(rows % size + 1), rows - size + 1, size)
    return sorted(rng.sample(firsts, min(count, len(firsts))))


def branch_chances(
    head: EagleHead, tokens: Tensor, states: Tensor, places: Sequence[int], branches: Sequence[Sequence[int]]
) -> Tensor:
    """log M(S) [n]: what a head gives the tokens of a branch after each of n places, from its own states.

    `tokens` [L] and the target's `states` [L, T D] are of the text, `branches` in the draft vocabulary; an empty one
    has 0. One of them must not be empty.
    """
    longest, at = max(map(len, branches)), torch.tensor(places, device=tokens.device)
    padded = torch.tensor([[*branch, *[0] * (longest - len(branch))] for branch in branches], device=tokens.device)
    there = torch.tensor([[i < len(branch) for i in range(longest)] for branch in branches], device=tokens.device)
    read = torch.cat([tokens[at][:, None], head.ids[padded[:, :-1]]], 1)
    steps = draft_steps(head, tokens[None], states[None], at[None] - 1, read[None])
    logits = wide(torch.stack([step[0] for step, _ in steps], 1))  # [n, longest, draft vocabulary]
    chosen = logits.log_softmax(-1).gather(-1, padded[..., None])[..., 0]
    return torch.where(there, chosen, 0.0).sum(-1)
