"""What the trainings of block drafters and of EAGLE-3's head on their own drafts share.

The head is an earlier one: that of --warm-up, or the one that ships with the pair. The target is frozen; documents are
decoded with the head in every step, so that there are no answers to collect.
"""

import math
from typing import Any

from specbench.base.console import note, progress, say
from specbench.training.documents import Document, documents_hash
from specbench.training.publish import source
from specbench.training.train import Job, checkpoint_of
from specbench_extras.opd.fit import ReplayTraining


def fitted(
    job: Job, training: ReplayTraining, documents: list[Document], held: list[Document], begun: str
) -> dict[str, Any]:
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
