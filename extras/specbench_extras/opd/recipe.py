"""The recipes of Draft-OPD (arXiv 2605.29343) for heads (recipes/*-draft-opd.yaml)."""

from pydantic import Field

from specbench.training.recipe import Autocast, LearnedRecipe
from specbench_extras.drafts.recipe import Divergence


class ReplayRecipe(LearnedRecipe):
    """The recipe of a block drafter, which drafts blocks of the size that it has."""

    temperature: float = Field(ge=0, allow_inf_nan=False, description="of the texts that are decoded; 0 is greedy")
    accepted: Divergence = Field(description="the divergence on accepted slots")
    rejected: Divergence = Field(description="the divergence on the first rejected slot and on those after it")
    reject_decay: float = Field(gt=0, le=1, description="weight of a rejected slot relative to the slot before")
    autocast: Autocast = Field(description="matrix products in bfloat16; auto: on a GPU")


class ChainReplayRecipe(ReplayRecipe):
    """The recipe of EAGLE-3's head, which drafts chains."""

    gamma: int = Field(ge=1, description="draft tokens a round")
