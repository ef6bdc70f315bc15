"""Train Hydra's heads (arXiv 2402.05109), which read the tokens of the text between state and prediction."""

from transformers import PreTrainedModel

from specbench.engine.models.draft_heads import HydraHeads
from specbench.engine.models.heads import hidden_size
from specbench.methods.heads.eagle3 import check_target
from specbench.methods.heads.hydra import KIND
from specbench.training.train import Job
from specbench_extras.medusa.recipe import DraftHeadsRecipe
from specbench_extras.medusa.train import DraftHeadsTrainer

SHARED = True  # workers may share what it collects; see train.py


def new_heads(target: PreTrainedModel, recipe: DraftHeadsRecipe) -> HydraHeads:
    """Heads in torch's first weights."""
    own = recipe.output == "own"
    output, embedding = target.get_output_embeddings(), target.get_input_embeddings()
    return HydraHeads(recipe.heads, recipe.layers, hidden_size(target), own, output, embedding)


def train(job: Job) -> None:
    """As `HeadTrainer.train`. Raises UserError too for a target whose embeddings are not as wide as its states."""
    check_target(job.pair, KIND)
    DraftHeadsTrainer(job, new_heads).train()
