"""Train EAGLE-3's head on its own drafts: `specbench train --method eagle3 --preset draft-opd`."""

from specbench.config import validated
from specbench.training.documents import training_documents
from specbench.training.eagle3.head_file import earlier_head, publish_eagle_head
from specbench.training.train import Job
from specbench_extras.opd.fit import ChainTraining
from specbench_extras.opd.recipe import ChainReplayRecipe
from specbench_extras.opd.shared import announce, fitted, split

DECODES = True  # the target verifies drafts; see train.py


def train(job: Job) -> None:
    """Go on with a head of EAGLE-3 and write it to `job.out`. Raises UserError."""
    assert job.recipe
    recipe = validated(ChainReplayRecipe, job.recipe.values, job.recipe.name)
    head, begun = earlier_head(job)
    documents = training_documents(job.plan, job.pair, recipe.gamma + 1, job.data)
    learned, held = split(job, documents)
    training = ChainTraining(job.pair, head, learned, recipe, job.plan.seed)
    trained = fitted(job, training, documents, held, begun)
    publish_eagle_head(job, head, trained | {"draft_vocabulary": len(head.ids)})
    announce(job)
