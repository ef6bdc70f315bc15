"""The recipe of GTO (arXiv 2509.22134; extras/specbench_extras/gto/recipes/eagle3-gto.yaml)."""

from pydantic import Field

from specbench.training.recipe import UnrolledRecipe


class GroupRecipe(UnrolledRecipe):
    """The loss of EAGLE-3's trainer, and that of trees, which grow after groups of adjacent places."""

    groups: int = Field(ge=1, description="groups of a document in a pass, at random places of its answer")
    group: int = Field(ge=2, description="adjacent places of a group (m), each with a tree")
    total_tokens: int = Field(ge=2, description="the most tokens of a tree, with the one that it follows")
    top_k: int = Field(ge=1, description="children of a node, and nodes of a level that are expanded")
    depth: int = Field(ge=0, description="levels of a tree after the first one")
    eta: float = Field(gt=0, description="how much the best branch decides a tree's reward (η)")
    ratio_clip: float = Field(gt=0, lt=1, description="how far the ratio of both heads may go from 1 (ε)")
    weight: float = Field(ge=0, description="weight of the trees' loss next to the tokens' (ω)")
