"""Documents to learn from, never test ones, and the tasks' own scores of what is answered to them."""

from collections.abc import Callable
from dataclasses import dataclass

from specbench.config import Plan, UserError, task_info
from specbench.console import console
from specbench.harness import Tasks
from specbench.models import Pair
from specbench.run import check_lengths, encode, load_tasks


@dataclass(frozen=True)
class Document:
    task: str
    number: int  # within the task, from 0
    prompt: list[int]
    prompt_hash: str
    until: tuple[str, ...]
    max_new_tokens: int
    score: Callable[[str], float]  # of an answer, by the task's headline metric

    @property
    def name(self) -> str:
        return f"{self.task}-{self.number:05d}"


def training_documents(plan: Plan, pair: Pair, reach: int) -> list[Document]:
    """The first `plan.limit` calibration documents of each task of the plan; tasks without any are named and left out.

    Documents of another task that stand in for a task's own, as `calibrate` reads them, have no scorer of its kind.
    Raises UserError if no task is left, or if a prompt is too long for the pair (`reach`: as in Method).
    """
    found: list[Document] = []
    for line in plan.tasks:
        info = task_info(line.task)
        if info.calibration is None or ":" in info.calibration:
            console.print(f"{line.task}: left out, it has no documents of its own to learn from", highlight=False)
            continue
        part = plan.model_copy(update={"tasks": (line,), "split": info.calibration})
        tasks = load_tasks(part, pair)
        requests = tasks.requests()
        prompts = [encode(pair, request.prompt) for request in requests]
        check_lengths(requests, prompts, pair, reach)
        for request, prompt in zip(requests, prompts, strict=True):
            score = scorer(tasks, line.task, request.doc_id, info.metric)
            found.append(
                Document(
                    line.task,
                    request.doc_id,
                    prompt,
                    request.prompt_hash,
                    request.until,
                    request.max_new_tokens,
                    score,
                )
            )
    if not found:
        raise UserError(
            f"no task of {plan.suite} has documents to learn from besides those it tests; "
            "take a suite with another task, such as gsm8k or pocket_gsm8k"
        )
    return found


def scorer(tasks: Tasks, task: str, number: int, metric: str) -> Callable[[str], float]:
    """A function from an answer to a document to its score; `metric` is lm-eval's `name,filter`."""
    name, _, label = metric.partition(",")

    def score(text: str) -> float:
        (value,) = (
            one.value
            for one in tasks.score({(task, number): text})
            if one.doc_id == number and (one.metric, one.filter) == (name, label)
        )
        return value

    return score
