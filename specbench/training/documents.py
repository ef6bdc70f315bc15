"""Documents to learn from, never test ones, and the tasks' own scores of answers to them."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.base.console import note
from specbench.base.hashes import stable_seed
from specbench.config import SUITES, MethodSpec, PairSpec, TaskLine, UserError, task_info
from specbench.config.prompts import prompt_lines
from specbench.engine.generate import Ending, Limits
from specbench.engine.models.pair import Pair
from specbench.measure.manifest import digest
from specbench.measure.prompts import check_lengths, encode, load_tasks
from specbench.plan import Plan
from specbench.tasks.data import evaluated_split
from specbench.tasks.harness import scorer

NO_NAME = re.compile(r"[^\w.-]+")  # what a category may have that the name of a file cannot


@dataclass(frozen=True)
class Document:
    task: str
    number: int  # within the task, from 0
    prompt: list[int]
    prompt_hash: str
    until: tuple[str, ...]
    max_new_tokens: int
    score: Callable[[str], float]  # of an answer, by the task's headline metric
    split: str = ""  # set if the user named the split
    reference: str | None = None  # the prompt with its reference answer, if asked for and if there is one
    text: str = ""  # of the prompt

    @property
    def name(self) -> str:
        return "-".join([self.task, *([self.split] if self.split else []), f"{self.number:05d}"])

    @property
    def facts(self) -> dict[str, object]:
        """What an answer depends on, JSON-like, apart from models and sampling."""
        return {"prompt": self.prompt_hash, "length": self.max_new_tokens}

    def ending(self, pair: Pair) -> Ending:
        """The ending of an empty answer."""
        return Ending(Limits(self.max_new_tokens, pair.eos_ids, self.until), pair.detokenizer)


def documents_hash(documents: Iterable[Document]) -> str:
    """A hash of all that answers to these documents depend on, apart from models and sampling."""
    return digest([[item.name, item.prompt_hash, item.max_new_tokens, item.until] for item in documents])


@dataclass(frozen=True)
class Source:
    """One split of a task; its documents are named after `task`, and `line` is what is loaded."""

    task: str
    line: TaskLine
    split: str
    named: bool = False  # the user named the split


def training_documents(
    plan: Plan, pair: Pair, reach: int, data: Sequence[str] = (), stand_ins: bool = False, references: bool = False
) -> list[Document]:
    """The first `plan.limit` documents of each split in `data` (TASK:SPLIT), or of the calibration split of each task.

    Tasks without calibration documents are named and left out. Tasks that use documents of another task instead are
    left out too, unless `stand_ins`: then these are read as `calibrate` reads them, and scored by the other task's
    rules. With `references`, each has its reference answer too. Raises UserError if no task is left, if a split is a
    test split, or if a prompt is too long for the pair (`reach`: as in Method). A plan with a file of prompts has its
    prompts instead, all first turns.
    """
    if plan.prompts:
        return _of_prompts(plan, pair, reach)
    documents: list[Document] = []
    for source in named_sources(data) if data else calibration_sources(plan, stand_ins):
        tasks = load_tasks(plan.model_copy(update={"tasks": (source.line,), "split": source.split}), pair)
        requests = tasks.requests()
        prompts = [encode(pair, request.prompt) for request in requests]
        check_lengths(requests, prompts, pair, reach)
        metric = task_info(source.line.task).metric
        answers = list(tasks.references(source.line.task)) if references else []
        for request, prompt in zip(requests, prompts, strict=True):
            documents.append(
                Document(
                    source.task,
                    request.doc_id,
                    prompt,
                    request.prompt_hash,
                    request.until,
                    request.max_new_tokens,
                    scorer(tasks, source.line.task, request.doc_id, metric),
                    source.split if source.named else "",
                    answers[request.doc_id] if references else None,
                    request.prompt,
                )
            )
    if not documents:
        raise UserError(
            f"no task of {plan.suite} has documents to learn from besides those it tests; "
            "take a suite with another task, such as gsm8k or pocket_gsm8k"
        )
    return documents


def _of_prompts(plan: Plan, pair: Pair, reach: int) -> list[Document]:
    """The prompts of the plan's file as documents, which nothing scores."""
    requests = [request for request in load_tasks(plan, pair).requests() if request.turn == 0]
    prompts = [encode(pair, request.prompt) for request in requests]
    check_lengths(requests, prompts, pair, reach)
    return [
        Document(
            NO_NAME.sub("_", request.task),
            request.doc_id,
            prompt,
            request.prompt_hash,
            request.until,
            request.max_new_tokens,
            _unscored,
            text=request.prompt,
        )
        for request, prompt in zip(requests, prompts, strict=True)
    ]


def _unscored(answer: str) -> float:
    raise UserError("prompts of a file have no right answers to learn from; take --suite, or --data TASK:SPLIT")


def calibration_sources(plan: Plan, stand_ins: bool) -> list[Source]:
    """The calibration splits of a plan's tasks; prints the tasks that are left out."""
    sources = []
    for line in plan.tasks:
        calibration = plan.info(line.task).calibration
        if calibration is None or (":" in calibration and not stand_ins):
            note(f"{line.task}: left out, it has no documents of its own to learn from")
            continue
        other, _, split = calibration.rpartition(":")
        loaded = line.model_copy(update={"task": other, "fewshot": None}) if other else line
        sources.append(Source(line.task, loaded, split))
    return sources


def named_sources(data: Sequence[str]) -> list[Source]:
    """Splits that are named as TASK:SPLIT. Raises UserError for a split that its task tests, and for a wrong name."""
    sources = []
    for text in dict.fromkeys(data):
        task, colon, split = text.partition(":")
        if not (task and colon and split):
            raise UserError(f"--data {text!r}: write TASK:SPLIT, such as --data gsm8k:train")
        task_info(task)
        if split == evaluated_split(task, SUITES / "tasks"):
            raise UserError(
                f"--data {text}: {task} is tested on its {split} documents, which must not be learned from; "
                "name another split, such as train"
            )
        sources.append(Source(task, TaskLine(task=task), split, named=True))
    return sources


def hold_out(names: Iterable[str], seed: int, one_in: int, least: int = 1) -> tuple[list[str], list[str]]:
    """The names of documents to learn from, and those of one document in `one_in` to evaluate on.

    Of few documents `least` are held out, but no more than a quarter, and at least one. The choice depends on the seed
    and the names alone, not on their order.
    """
    ordered = sorted(names, key=lambda name: stable_seed(seed, name))
    held = max(1, len(ordered) // one_in, min(least, len(ordered) // 4))
    return ordered[held:], ordered[:held]


def split_documents(documents: Sequence[Document], seed: int, one_in: int) -> tuple[list[Document], list[Document]]:
    """Documents to learn from, and those held out, as `hold_out` chooses them, both in their order.

    Raises UserError if none is left to learn from.
    """
    learned, held = map(set, hold_out([document.name for document in documents], seed, one_in))
    if not learned:
        raise UserError(f"no document is left to learn from once {len(held)} is held out; take more --documents")
    return [one for one in documents if one.name in learned], [one for one in documents if one.name in held]


def plan_of_splits(
    pair: PairSpec, data: Sequence[str], spec: MethodSpec, documents: int, seed: int, data_dir: str | None
) -> Plan:
    """A plan whose documents are named as TASK:SPLIT."""
    return Plan(
        pair=pair,
        methods=(spec,),
        baseline=None,
        suite=" ".join(data),
        tasks=tuple(TaskLine(task=source.task) for source in named_sources(data)),
        limit=documents,
        data_dir=data_dir,
        seed=seed,
    )


def plan_of_prompts(pair: PairSpec, file: Path, spec: MethodSpec, documents: int | None, seed: int) -> Plan:
    """A plan of a file of prompts, in the chat template if the target has one. Raises UserError as `prompt_lines`."""
    return Plan(
        pair=pair,
        methods=(spec,),
        baseline=None,
        suite=file.stem,
        tasks=prompt_lines(file, None),
        limit=documents,
        chat_template=True,
        prompts=str(file.resolve()),
        seed=seed,
    )
