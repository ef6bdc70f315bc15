"""Train a block drafter (DFlash, arXiv 2602.06036): the target answers documents, and the head learns to go on.

The target is frozen; its hidden states are computed on the fly, as are its distributions.
"""

import math
from collections.abc import Sequence

from specbench.base.console import console, note, progress, say
from specbench.config import UserError, validated
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.types import Sampling
from specbench.measure.manifest import digest
from specbench.methods.dflash import KIND
from specbench.methods.eagle3 import check_target
from specbench.training.dflash.fit import Training
from specbench.training.documents import training_documents
from specbench.training.eagle3.data import Answered, answer_all
from specbench.training.eagle3.train import split
from specbench.training.publish import announce, checkpoint_of, collecting, flush_right, publish, source
from specbench.training.recipe import BlockRecipe
from specbench.training.train import Job


def train(job: Job) -> None:
    """Answer the job's documents, fit, write the head to `job.out` and print how often it agrees on held-out ones.

    The answers stay in NAME.answers/ beside NAME.safetensors, some documents to a file. Raises UserError if there is
    nothing to learn.
    """
    assert job.recipe
    if job.grid:
        raise UserError(f"{KIND} is trained one head at a time; leave out --grid")
    recipe = validated(BlockRecipe, job.recipe.values, job.recipe.name)
    target = check_target(job.pair, KIND)
    documents = training_documents(job.plan, job.pair, 0, job.data)
    folder = job.out.with_name(f"{job.out.stem}.answers")
    with collecting(folder, "answering", recipe.answers * len(documents), "the answers") as advance:
        sampling = Sampling(float(recipe.temperature))
        answered = answer_all(job.pair, documents, recipe.answers, sampling, job.plan.seed, folder, advance)
    learned, held = split(answered, recipe.length, job.plan.seed)
    rows = [[document.name, document.prompt, document.tokens] for document in (*learned, *held)]
    facts = {**recipe.model_dump(), "seed": job.plan.seed, "data": digest(rows)}
    training = Training(target, learned, job.pair.vocabulary, recipe, job.plan.seed)
    with progress(f"training {job.out.stem}", training.steps) as advance:
        training.run(checkpoint_of(job.out), facts, advance)
    *figures, in_a_row = training.agreement(held)
    head = training.head
    trained = {
        **facts,
        **source(job, documents),
        "learned_answers": len(learned),
        "held_out_answers": len(held),
        "held_out_agreement": [round(value, 4) for value in figures if not math.isnan(value)],
        "config": stored_settings(head.config),
        "layers": list(head.layers_read),
        "block": head.block,
    }
    publish(job.out, KIND, head.state_dict(), job.pair, trained)
    note(f"{len(learned)} answers; {head.num_parameters():,} numbers; it reads the target's layers {trained['layers']}")
    show(held, figures, in_a_row)
    announce(job.out, f"answers: {folder}", job.use(job.out))


def show(held: Sequence[Answered], figures: Sequence[float], in_a_row: float) -> None:
    """Print how often each slot's choice is the target's, on documents that the head has not learned from."""
    say(f"held out: {len(held)} answers; how often a slot's choice is the target's, given the right tokens before it")
    table = flush_right(*(f"slot {slot}" for slot in range(1, len(figures) + 1)))
    table.add_row(*("-" if math.isnan(value) else f"{value:.1%}" for value in figures))
    console.print(table)
    if not math.isnan(in_a_row):
        say(f"right in a row, of {len(figures)} slots: {in_a_row:.2f} on the mean")
