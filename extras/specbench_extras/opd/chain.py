"""Train EAGLE-3's head on its own drafts: `specbench train --method eagle3 --preset draft-opd`."""

from specbench.methods.heads.eagle3 import KIND
from specbench.training.documents import split_documents, training_documents
from specbench.training.eagle3.head_file import describe, earlier_head, tensors_of
from specbench.training.heads import HELD_OUT
from specbench.training.publish import publish
from specbench.training.train import Job
from specbench_extras.opd.fit import ChainTraining
from specbench_extras.opd.recipe import ChainReplayRecipe
from specbench_extras.opd.shared import announce, fitted

DECODES = True  # the target verifies drafts; see train.py


def train(job: Job) -> None:
    """Go on with a head of EAGLE-3 and write it to `job.out`. Raises UserError."""
    recipe = job.recipe_as(ChainReplayRecipe)
    head, begun = earlier_head(job)
    documents = training_documents(job.plan, job.pair, recipe.gamma + 1, job.data)
    learned, held = split_documents(documents, job.plan.seed, HELD_OUT)
    training = ChainTraining(job.pair, head, learned, recipe, job.plan.seed)
    trained = fitted(job, training, documents, held, begun) | describe(head, job.pair.models["target"])
    publish(job.out, KIND, tensors_of(head), job.pair, trained)
    announce(job)
