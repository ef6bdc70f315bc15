"""The recipe of DEL's adapters."""

from collections.abc import Sequence

from pydantic import Field

from specbench_extras.kangaroo.recipe import ExitRecipe


class DelRecipe(ExitRecipe):
    """The recipe of adapters for DEL (arXiv 2504.05598), each trained as Kangaroo's."""

    deepest = "every"

    every: int = Field(ge=1, description="an adapter after each so many layers of the target, but not after the last")

    def exits(self, layers: int) -> Sequence[int]:
        return range(self.every, layers, self.every)
