"""Train a block drafter on its own drafts: `specbench train --method dflash|dflare --preset draft-opd`."""

from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.heads import find_head
from specbench.methods.blocks.dflash import block_head
from specbench.methods.heads.eagle3 import check_target
from specbench.training.documents import split_documents, training_documents
from specbench.training.heads import HELD_OUT, to_learn
from specbench.training.publish import publish
from specbench.training.train import Job
from specbench_extras.opd.fit import BlockTraining
from specbench_extras.opd.recipe import ReplayRecipe
from specbench_extras.opd.shared import announce, fitted

DECODES = True  # the target verifies drafts; see train.py


def train(job: Job) -> None:
    """Go on with the head of a block drafter and write it to `job.out`. Raises UserError."""
    recipe, kind = job.recipe_as(ReplayRecipe), job.spec.method
    earlier = find_head(job.begins_with, kind, job.pair, None)
    head = to_learn(block_head(earlier, check_target(job.pair, kind)), earlier.tensors)
    documents = training_documents(job.plan, job.pair, head.block, job.data)
    learned, held = split_documents(documents, job.plan.seed, HELD_OUT)
    training = BlockTraining(job.pair, head, learned, recipe, job.plan.seed)
    trained = fitted(job, training, documents, held, earlier.hashes()["head"])
    sizes = {"config": stored_settings(head.config), "layers": list(head.layers_read), "block": head.block}
    publish(job.out, kind, head.state_dict(), job.pair, trained | sizes)
    announce(job)
