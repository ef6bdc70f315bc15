"""Train Medusa's heads (arXiv 2401.10774, Medusa-1: the target stays as it is)."""

from transformers import PreTrainedModel

from specbench.engine.models.draft_heads import MedusaHeads
from specbench.engine.models.heads import hidden_size
from specbench.methods.heads.medusa import KIND
from specbench.training.train import Job
from specbench_extras.medusa import fit as draft_heads
from specbench_extras.medusa.recipe import DraftHeadsRecipe

SHARED = True  # workers may share what it collects; see train.py


def new_heads(target: PreTrainedModel, recipe: DraftHeadsRecipe) -> MedusaHeads:
    """Heads in torch's first weights."""
    own = recipe.output == "own"
    return MedusaHeads(recipe.heads, recipe.layers, hidden_size(target), own, target.get_output_embeddings())


def train(job: Job) -> None:
    """As `draft_heads.train`."""
    draft_heads.train(job, KIND, new_heads)
