"""The recipe of Medusa's and Hydra's heads."""

from typing import Literal

from pydantic import Field

from specbench.training.recipe import AnsweredRecipe


class DraftHeadsRecipe(AnsweredRecipe):
    """The recipe of Medusa's and Hydra's heads (arXiv 2401.10774, 2402.05109, and their official code)."""

    heads: int = Field(ge=1, description="heads, each of which says one token")
    layers: int = Field(ge=1, description="residual blocks of a head")
    output: Literal["own", "target"] = Field(
        description="output layers: of each head its own, which begins as the target's; or the target's for all"
    )
    loss: Literal["tokens", "distillation"] = Field(
        description="cross-entropy with the text's token, or with the target's distribution"
    )
    decay: float = Field(gt=0, le=1, description="weight of a head's loss relative to the head before it")
    last_rate: float = Field(ge=0, le=1, description="share of the learning rate that is left at the end")
