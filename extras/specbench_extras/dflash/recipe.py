"""Recipes of block drafters."""

from typing import Literal

from pydantic import Field

from specbench.training.recipe import AnsweredRecipe, Autocast


class SlotRecipe(AnsweredRecipe):
    """What the recipes of block drafters share."""

    layers: int = Field(ge=1, description="layers of the head")
    block: int = Field(ge=2, description="tokens of a block, with the committed one that it begins with")
    anchors: int = Field(ge=1, description="blocks of a document in a pass, each after a random place of the answer")
    loss: Literal["tokens", "distillation"] = Field(
        description="cross-entropy of each slot with the text's token, or with the target's distribution"
    )
    decay: float = Field(gt=0, description="slot k weighs exp(-(k - 1) / decay)")
    autocast: Autocast = Field(description="matrix products in bfloat16; auto: on a GPU")


class BlockRecipe(SlotRecipe):
    """The recipe of DFlash (arXiv 2602.06036), DFlare (2606.02091), and the trainers of others."""

    features: int = Field(ge=1, description="layers of the target whose outputs the head reads")
