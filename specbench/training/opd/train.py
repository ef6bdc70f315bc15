"""Train a head on its own drafts: `specbench train --method dflash|dflare|eagle3 --preset draft-opd`.

The head is an earlier one: that of --warm-up, or the one that ships with the pair. The target is frozen; documents are
decoded with the head in every step, so that there are no answers to collect.
"""

import math
from typing import Any

from specbench.base.console import note, progress, say
from specbench.config import UserError, validated
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.heads import find_head
from specbench.methods.blocks.dflash import block_head
from specbench.methods.heads.eagle3 import check_target
from specbench.training.documents import Document, documents_hash, hold_out, training_documents
from specbench.training.eagle3.head_file import earlier_head, publish_eagle_head
from specbench.training.heads import HELD_OUT, to_learn
from specbench.training.opd.fit import BlockTraining, ChainTraining, Training
from specbench.training.opd.recipe import ChainReplayRecipe, ReplayRecipe
from specbench.training.publish import checkpoint_of, publish, source
from specbench.training.train import Job

PRESET = "draft-opd"


def train_blocks(job: Job) -> None:
    """Go on with the head of a block drafter and write it to `job.out`. Raises UserError."""
    assert job.recipe
    recipe, kind = validated(ReplayRecipe, job.recipe.values, job.recipe.name), job.spec.method
    earlier = find_head(job.begins_with, kind, job.pair, None)
    head = to_learn(block_head(earlier, check_target(job.pair, kind)), earlier.tensors)
    documents = training_documents(job.plan, job.pair, head.block, job.data)
    learned, held = split(job, documents)
    training = BlockTraining(job.pair, head, learned, recipe, job.plan.seed)
    trained = fitted(job, training, documents, held, earlier.hashes()["head"])
    sizes = {"config": stored_settings(head.config), "layers": list(head.layers_read), "block": head.block}
    publish(job.out, kind, head.state_dict(), job.pair, trained | sizes)
    announce(job)


def train_chain(job: Job) -> None:
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


def split(job: Job, documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Documents to learn from and those held out. Raises UserError if there are too few, and for a grid."""
    if job.grid:
        raise UserError(f"{job.spec.method} is trained one head at a time; leave out --grid")
    learned, held = map(set, hold_out([document.name for document in documents], job.plan.seed, HELD_OUT))
    if not learned:
        raise UserError(f"{len(documents)} document is too few to learn from and to hold out; take more --documents")
    return [one for one in documents if one.name in learned], [one for one in documents if one.name in held]


def fitted(job: Job, training: Training, documents: list[Document], held: list[Document], begun: str) -> dict[str, Any]:
    """Train to the end; returns what the head's file says of it. `begun` is the hash of the head that it began as."""
    recipe, seed = training.recipe, job.plan.seed
    facts = {**recipe.model_dump(), "preset": job.preset, "seed": seed, "data": documents_hash(documents)}
    facts["warm_up"] = begun
    before = training.tokens_a_round(held)
    with progress(f"training {job.out.stem}", training.steps) as advance:
        training.run(checkpoint_of(job.out), facts, advance)
    after = training.tokens_a_round(held)
    note(f"{len(training.documents)} documents; drafts of {training.gamma} tokens, at temperature {recipe.temperature}")
    say(f"held out: {len(held)} documents; tokens a round {before:.2f} → {after:.2f}")
    gained = [None if math.isnan(value) else round(value, 4) for value in (before, after)]
    return {**facts, **source(job, documents), "held_out_tokens_a_round": gained}


def announce(job: Job) -> None:
    say(f"{job.out}")
    say(f"next: {job.use(job.out)}")
