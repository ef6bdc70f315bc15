"""Tiny models that decode together: pairs of several, and texts of the same combination done slowly."""

import copy
import functools
from types import SimpleNamespace

import naive_cos as naive
import numpy as np
import oracle
import torch
from gates import DEVICE

from specbench.engine.models.pair import Pair

COUNT = 40
ROLES = ("draft", "target", "math", "code")  # the members' order
WORDS = 6
# By name: settings, and the same combination done slowly.
PAIRWISE = {
    "weighted": ({}, naive.weighted(0.5, 0.5)),
    "weights 0.3": ({"weights": 0.3}, naive.weighted(0.3, 0.7)),
    "contrastive": ({"combine": "contrastive", "mu": 0.3}, naive.contrastive(0.3)),
    "realigned": ({"combine": "realigned", "realign": 0.6}, naive.realigned(0.6)),
}
THREE = ({"weights": [0.5, 0.3, 0.2]}, naive.weighted(0.5, 0.3, 0.2))


def made_pair(models) -> Pair:
    """A collaboration of all these models, in their order."""
    roles = ROLES[: len(models)]
    tokenizer = SimpleNamespace(decode=lambda ids, **_: "", eos_token_id=None)
    return Pair(
        "tiny", {k: copy.deepcopy(v).to(DEVICE) for k, v in zip(roles, models, strict=True)}, tokenizer, {}, roles
    )


class Group:
    """Relatives of one architecture, and a prompt of which they make a lively text without all agreeing."""

    def __init__(self, architecture: str, count: int, combine: naive.Combine, length: int = 6) -> None:
        models = naive.family(architecture, count, scale=2.0)
        self.readers, self.pair, self.combine = [naive.reader(model) for model in models], made_pair(models), combine
        for self.prompt in oracle.prompts(30, length=length, seed=length):
            self.text = naive.ensemble_greedy(self.readers, combine, self.prompt, COUNT)
            alike = [self.agreement(read) for read in self.readers]
            if len(set(self.text)) >= 12 and 0.4 <= min(alike) < 0.95:
                return
        raise AssertionError(f"no prompt makes {count} {architecture} models say 12 different things and disagree")

    def agreement(self, read: naive.NextLogits) -> float:
        return float(np.mean([oracle.best(read(self.prompt + self.text[:k])) == self.text[k] for k in range(COUNT)]))


@functools.cache
def tables(count: int) -> list[naive.Table]:
    """Models of different opinions, each of which looks at the last token only."""
    rng = torch.Generator().manual_seed(11)
    return [naive.Table(1.5 * torch.randn(WORDS, WORDS, generator=rng, dtype=torch.float64)) for _ in range(count)]
