"""RSD: recursive speculative decoding, trees drawn without replacement (Jeon et al., arXiv 2402.14160). Lossless."""

from collections.abc import Iterator
from itertools import accumulate
from operator import mul
from typing import Annotated, Literal

import torch
from pydantic import Field

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.decoding.drafters import Drafter
from specbench.decoding.multidraft import Beam, Branching
from specbench.decoding.session import Session
from specbench.decoding.speculate import speculate
from specbench.decoding.trees import exact_tree
from specbench.decoding.types import Method, Round, Sampling, Stateless, Watch
from specbench.models import Pair


class Settings(Base):
    """A tree is of a fixed size: there is no draft length to be chosen, and none ends at an end token."""

    gamma: int = Field(ge=1, description="levels of the tree (γ)")
    search: Literal["beam", "constant"] = Field(description="beam: stochastic beam search (RSD-S); constant: RSD-C")
    width: int = Field(ge=1, description="beam: tokens of a level")
    branching: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        description="constant: children of each token, level by level; 1 in the levels that it does not name"
    )

    def sizes(self) -> list[int]:
        """The most tokens of each level."""
        if self.search == "beam":
            return [self.width] * self.gamma
        return list(accumulate([*self.branching, *[1] * (self.gamma - len(self.branching))], mul))


class TreeSpeculation(Stateless):
    """Draft a tree of γ levels, score it by one target forward, keep the path that recursive rejection passes."""

    lossless = True

    def __init__(self, target: Session, drafter: Drafter, gamma: int, most: int) -> None:
        """`most` is how many tokens a tree may have."""
        self.target, self.drafter, self.gamma = target, drafter, gamma
        self.reach = most + 1

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        return speculate(self.target, self.drafter, exact_tree, self.gamma, prompt, sampling, rng)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Raises UserError for a tree that names more levels than it has, or is longer than what the pair reads."""
    constant = settings.search == "constant"
    if constant and len(settings.branching) > settings.gamma:
        raise UserError(
            f"rsd: branching names {len(settings.branching)} levels, but gamma is {settings.gamma}; change one of them"
        )
    most = sum(settings.sizes())
    refuse_long(f"rsd: its tree has up to {most} tokens", most, pair)
    session = pair.session("draft", watch)
    drafter = Branching(session, settings.branching) if constant else Beam(session, settings.width)
    return TreeSpeculation(pair.session("target", watch), drafter, settings.gamma, most)


def refuse_long(what: str, most: int, pair: Pair) -> None:
    """Raise UserError where a round would be longer than what the pair reads."""
    if most + 1 >= pair.context:
        raise UserError(f"{what}, but {pair.name} reads {pair.context} with the text; choose a smaller one")
