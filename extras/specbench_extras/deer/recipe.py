"""The recipe of DEER's block drafter."""

from pydantic import Field

from specbench_extras.dflash.recipe import SlotRecipe


class TextBlockRecipe(SlotRecipe):
    """The recipe of DEER's drafter (arXiv 2512.15176), which is trained in two stages."""

    continued: float = Field(ge=0, le=1, description="share of the steps, the first ones, in which all slots weigh 1")
