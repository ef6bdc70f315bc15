"""The recipe of SpecDec++'s acceptance head."""

from typing import Literal

from pydantic import Field

from specbench.training.recipe import AdamWRecipe

# Settings of `HeadRecipe` that the collected data depends on.
COLLECTING = ("mix", "temperature", "top_k", "warped")


class HeadRecipe(AdamWRecipe):
    """The recipe of SpecDec++'s acceptance head (arXiv 2405.19715, sections 4.4, 5.1 and D.1)."""

    inputs: Literal["state", "state+confidence"] = Field(
        description="what the head reads: the draft's hidden state after the token, or also the log odds of q(d)"
    )
    depth: int = Field(ge=0, description="residual blocks of the head (D)")
    shared_blocks: bool = Field(description="all blocks share their weights")
    weight: float = Field(gt=0, allow_inf_nan=False, description="weight of rejections in the loss (w_rej)")
    mix: float = Field(ge=0, lt=1, description="share of the target's tokens in the text that the draft reads (r)")
    temperature: float = Field(ge=0, allow_inf_nan=False, description="of the target's responses; 0 is greedy")
    top_k: int = Field(ge=0, description="of the target's responses; 0: off")
    warped: bool = Field(description="acceptance under this temperature and top-k, not under the plain softmax")
    patience: int = Field(ge=0, description="epochs without a better held-out KL before it stops; 0: never")
