"""Documents of trainings as a test makes them, and the plan of a training on a suite's."""

import copy
from collections.abc import Sequence

import oracle
from transformers import PreTrainedModel

from specbench import config
from specbench.plan import Plan, resolve_tasks
from specbench.training.answered import Answered
from specbench.training.documents import Document


def own_answers(target: PreTrainedModel, lengths: Sequence[int], counts: Sequence[int]) -> list[Answered]:
    """Documents of a target's own greedy text: prompts of these lengths, 6 at most, and so many tokens each."""
    model = copy.deepcopy(target).cpu()
    prompts = [
        one[:length] for one, length in zip(oracle.prompts(len(lengths), length=6, seed=3), lengths, strict=True)
    ]
    return [
        Answered(f"d{i}", prompt + oracle.greedy(model, prompt, count), len(prompt))
        for i, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
    ]


def right(text: str) -> float:
    """Answers with a 6 are."""
    return float("6" in text.split())


def document(number: int, prompt=None, score=right, length: int = 12, until=()) -> Document:
    prompt = prompt or [20 + number, 1]
    return Document("made", number, prompt, f"hash of {prompt}", until, length, score)


def plan_of(suite: str, documents: int, data_dir: str | None = None) -> Plan:
    """The plan of a training on so many documents of a suite's tasks, for the bundled pair."""
    pair = config.load_pair("pocket")
    tasks = resolve_tasks(config.load_suite(suite), pair, data_dir)
    return Plan(pair=pair, methods=(), baseline=None, suite=suite, tasks=tasks, limit=documents, data_dir=data_dir)
