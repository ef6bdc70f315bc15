"""Recipes of adapters after some of the target's layers."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from specbench.training.recipe import AnsweredRecipe


class ExitRecipe(AnsweredRecipe):
    """What the recipes of adapters after some of the target's layers share."""

    deepest: ClassVar[str]  # the setting that decides the last of them

    clip: float = Field(gt=0, description="largest gradient of a single weight")

    @abstractmethod
    def exits(self, layers: int) -> Sequence[int]:
        """How many of the target's `layers` come before each adapter, rising."""


class KangarooRecipe(ExitRecipe):
    """The recipe of Kangaroo's adapter (arXiv 2404.18911 and the official code)."""

    deepest = "exit"

    exit: int = Field(ge=1, description="layers of the target before the adapter")

    def exits(self, layers: int) -> Sequence[int]:
        return (self.exit,)
