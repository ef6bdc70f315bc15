"""Recipes of EAGLE's heads and of those that read the target's last state."""

from typing import Literal

from pydantic import Field

from specbench.training.recipe import UnrolledRecipe


class StateRecipe(UnrolledRecipe):
    """What the recipes of heads share that read the target's last state; that of Chimera's (arXiv 2402.15758)."""

    regression: float = Field(ge=0, description="weight of the smooth L1 distance to the target's next state")
    cross_entropy: float = Field(ge=0, description="weight of the cross-entropy with the target's distribution")
    distillation: float = Field(ge=0, description="weight of that over the target's likeliest tokens alone")
    top_k: int = Field(ge=1, description="how many tokens these are (K)")


class FeatureRecipe(StateRecipe):
    """The recipes of heads that go on with the target's last state: EAGLE, HASS, FSPAD, Dovetail (`training.eagle`)."""

    fuse: Literal["fc", "gated", "dgf"] = Field(
        description="how embedding and feature are fused: a linear layer (EAGLE), features gated by the token (FSPAD), "
        "or a gate between both (Dovetail)"
    )
