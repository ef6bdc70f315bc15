"""The recipe of SpecBlock's head."""

from pydantic import Field

from specbench.training.recipe import AnsweredRecipe, Autocast


class RankBlockRecipe(AnsweredRecipe):
    """The recipe of SpecBlock's drafter (arXiv 2605.07243 and the official code)."""

    layers: int = Field(ge=1, description="layers of the head")
    slots: int = Field(ge=2, description="tokens that a block drafts (K)")
    draft_vocabulary: int = Field(ge=1, description="tokens that the head may draft: the most frequent of the answers")
    ranking: int = Field(ge=1, description="inner width of the rank head")
    blocks: int = Field(ge=1, description="blocks that follow one another in training, each cut at a random slot")
    decay: float = Field(gt=0, le=1, description="weight of a slot's loss relative to the slot before it")
    rank_weight: float = Field(ge=0, description="weight of the rank head's loss")
    budget: float = Field(
        ge=0, description="a class that a slot meets more often in a step counts as much as so many; 0: no limit"
    )
    autocast: Autocast = Field(description="matrix products in bfloat16; auto: on a GPU")
