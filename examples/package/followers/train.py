"""Train followers' network: the target answers documents, and the network learns what follows each token of them."""

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from followers.method import KIND, Network
from specbench.base.console import say
from specbench.base.hashes import stable_seed
from specbench.training.answered import Answered
from specbench.training.heads import AnsweredTraining, Lessons
from specbench.training.loop import cosine
from specbench.training.recipe import AnsweredRecipe
from specbench.training.template import Figures, HeadTrainer, places, rounded
from specbench.training.train import Job

SHARED = True  # --workers: several processes may answer


class Recipe(AnsweredRecipe):
    """The settings of recipes/followers.yaml; all but this one are those of every head."""

    width: int = Field(ge=1, description="inner width of the network")


class Training(AnsweredTraining):
    """What one step is, and how good the network is."""

    def __init__(
        self, target: PreTrainedModel, vocabulary: int, answered: Sequence[Answered], recipe: Recipe, seed: int
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stable_seed(seed, "network"))
            network = Network(vocabulary, recipe.width).to(target.device)
        super().__init__(target, network, answered, recipe, seed)

    def learn(self, batch: Sequence[Answered]) -> float:
        """Make one step, in place; returns its loss."""
        read, wanted = pairs(batch, self.device)
        loss = F.cross_entropy(self.head(read), wanted)
        loss.backward()
        self.descend(cosine(self.step, self.steps, self.recipe.warmup * self.steps))
        return float(loss.detach())

    @torch.no_grad()
    def agreement(self, answered: Sequence[Answered]) -> list[float]:
        """The share of answer tokens that follow as the network says."""
        read, wanted = pairs(answered, self.device)
        return [float((self.head(read).argmax(-1) == wanted).float().mean())]


class Trainer(HeadTrainer[Recipe, Training]):
    """What this trainer adds to the template."""

    recipe_type = Recipe
    kind = KIND

    def begin(self, lessons: Lessons) -> Training:
        return Training(self.pair.models["target"], self.pair.vocabulary, lessons.learned, self.recipe, self.seed)

    def described(self, lessons: Lessons, after: Figures, before: Figures) -> dict[str, Any]:
        return {"held_out_agreement": rounded(after)}

    def show(self, held: Sequence[Answered], after: Figures, before: Figures) -> None:
        say(f"{places(held)}; the network's choice is the target's at {after[0]:.1%} of them")


def train(job: Job) -> None:
    """Called by `specbench train --method followers`."""
    Trainer(job).train()


def pairs(answered: Sequence[Answered], device: torch.device) -> tuple[Tensor, Tensor]:
    """The tokens of all answers but their last, and what follows each."""
    read = [token for one in answered for token in one.tokens[one.prompt : -1]]
    wanted = [token for one in answered for token in one.tokens[one.prompt + 1 :]]
    return torch.tensor(read, device=device), torch.tensor(wanted, device=device)
