"""Train adapters at several exits of the target, as DEL's exits (arXiv 2504.05598): each learns as Kangaroo's does.

DEL takes targets that were trained to exit early (LayerSkip). Adapters leave the target as it is.
"""

from specbench.base.console import console, note, say
from specbench.config import validated
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.exit_adapter import ExitAdapter
from specbench.training.publish import announce, flush_right, publish
from specbench.training.train import Job
from specbench_extras.del_.del_ import KIND
from specbench_extras.del_.recipe import DelRecipe
from specbench_extras.kangaroo.train import learn

SHARED = True  # workers may share what it collects; see train.py


def train(job: Job) -> None:
    """Train the adapters, write them to `job.out` and print how often each agrees on held-out answers.

    Errors of `kangaroo.learn`.
    """
    assert job.recipe
    recipe = validated(DelRecipe, job.recipe.values, job.recipe.name)
    training, lessons, untrained, agreements, curve = learn(job, recipe)
    adapters = {int(before): adapter for before, adapter in training.head.items()}
    first = next(iter(adapters.values()))
    assert isinstance(first, ExitAdapter)
    trained = {
        **lessons.described(job),
        **curve,
        "exits": list(adapters),
        "held_out_agreement": [round(value, 4) for value in agreements],
        "held_out_agreement_untrained": [round(value, 4) for value in untrained],
        "config": stored_settings(first.config),
    }
    publish(job.out, KIND, training.head.state_dict(), job.pair, trained)
    note(f"{len(lessons.learned)} answers, {trained['places']} places to draft from")
    table = flush_right("layers", "agrees", "untrained")
    for before, agreement, start in zip(adapters, agreements, untrained, strict=True):
        table.add_row(str(before), f"{agreement:.1%}", f"{start:.1%}")
    say(f"held out: {len(lessons.held)} answers, {sum(document.rows for document in lessons.held)} places")
    console.print(table)
    announce(job.out, f"answers: {lessons.folder}", job.use(job.out))
