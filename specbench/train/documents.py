"""Documents to learn from, never test ones, and the tasks' own scores of what is answered to them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from specbench import harness
from specbench.config import SUITES, TaskLine, UserError, task_info
from specbench.console import console
from specbench.harness import scorer
from specbench.models import Pair
from specbench.plan import Plan
from specbench.run import check_lengths, encode, load_tasks
from specbench.seeds import stable_seed


@dataclass(frozen=True)
class Document:
    task: str
    number: int  # within the task, from 0
    prompt: list[int]
    prompt_hash: str
    until: tuple[str, ...]
    max_new_tokens: int
    score: Callable[[str], float]  # of an answer, by the task's headline metric
    split: str = ""  # where it was asked for by split

    @property
    def name(self) -> str:
        return "-".join([self.task, *([self.split] if self.split else []), f"{self.number:05d}"])


@dataclass(frozen=True)
class Source:
    """One split of a task; `task` is what its documents are called after, `line` what is loaded."""

    task: str
    line: TaskLine
    split: str
    named: bool = False  # the user named the split


def training_documents(
    plan: Plan, pair: Pair, reach: int, data: Sequence[str] = (), stand_ins: bool = False
) -> list[Document]:
    """The first `plan.limit` documents of each split in `data` (TASK:SPLIT), or of the calibration split of each task.

    Tasks without calibration documents are named and left out, and so are those for which documents of another task
    stand in, unless `stand_ins`: as `calibrate` reads them, but scored by the other task's rules. Raises UserError if
    no task is left, if a split is tested, or if a prompt is too long for the pair (`reach`: as in Method).
    """
    found: list[Document] = []
    for source in named(data) if data else calibration(plan, stand_ins):
        tasks = load_tasks(plan.model_copy(update={"tasks": (source.line,), "split": source.split}), pair)
        requests = tasks.requests()
        prompts = [encode(pair, request.prompt) for request in requests]
        check_lengths(requests, prompts, pair, reach)
        metric = task_info(source.line.task).metric
        for request, prompt in zip(requests, prompts, strict=True):
            found.append(
                Document(
                    source.task,
                    request.doc_id,
                    prompt,
                    request.prompt_hash,
                    request.until,
                    request.max_new_tokens,
                    scorer(tasks, source.line.task, request.doc_id, metric),
                    source.split if source.named else "",
                )
            )
    if not found:
        raise UserError(
            f"no task of {plan.suite} has documents to learn from besides those it tests; "
            "take a suite with another task, such as gsm8k or pocket_gsm8k"
        )
    return found


def calibration(plan: Plan, stand_ins: bool) -> list[Source]:
    """The calibration splits of a plan's tasks."""
    found = []
    for line in plan.tasks:
        where = task_info(line.task).calibration
        if where is None or (":" in where and not stand_ins):
            console.print(f"{line.task}: left out, it has no documents of its own to learn from", highlight=False)
            continue
        other, _, split = where.rpartition(":")
        read = line.model_copy(update={"task": other, "fewshot": None}) if other else line
        found.append(Source(line.task, read, split))
    return found


def named(data: Sequence[str]) -> list[Source]:
    """Splits that were named as TASK:SPLIT. Raises UserError for one that its task evaluates, or that is no split."""
    found = []
    for text in dict.fromkeys(data):
        task, colon, split = text.partition(":")
        if not (task and colon and split):
            raise UserError(f"--data {text!r}: write TASK:SPLIT, such as --data gsm8k:train")
        task_info(task)
        if split == evaluated_split(task):
            raise UserError(
                f"--data {text}: {task} is tested on its {split} documents, which must not be learned from; "
                "name another split, such as train"
            )
        found.append(Source(task, TaskLine(task=task), split, named=True))
    return found


def evaluated_split(task: str) -> str:
    """The split whose documents a task tests."""
    folder = SUITES / "tasks"
    with harness._quiet():
        config = harness._manager([task], folder).task_index[task].cfg
    return str(config.get("test_split") or config.get("validation_split") or "test")


def held_apart(names: Iterable[str], seed: int, one_in: int) -> tuple[list[str], list[str]]:
    """The names of documents to learn from, and at least one in so many for the figures at the end.

    Which ones follows from the seed and the names alone, whatever their order.
    """
    ordered = sorted(names, key=lambda name: stable_seed(seed, name))
    held = max(1, len(ordered) // one_in)
    return ordered[held:], ordered[:held]
