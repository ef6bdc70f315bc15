"""The only door to lm-evaluation-harness: prompts and generation settings out, scores in.

lm-eval drives one model over all documents. specbench drives all methods over each document, so it uses the two halves
of lm-eval separately: `Tasks.requests` has lm-eval build every prompt, and `Tasks.score` replays stored texts through
lm-eval's own filters, metrics and aggregation. lm-eval is imported when `Tasks` is first made, not before.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from specbench import permissions
from specbench.config import SUITES, UserError
from specbench.config.specs import ConstraintSpec
from specbench.tasks.data import DataUnavailable, TaskChoice, cached_templates, load_task, quiet, task_manager
from specbench.tasks.requests import Request, build_instances, requests_of
from specbench.tasks.scoring import Score, scores_of

__all__ = ["DataUnavailable", "Request", "Score", "TaskChoice", "Tasks", "scorer"]


class Tasks:
    """The lm-eval tasks of a suite, with their documents and prompts.

    Args:
        choices: the tasks, in the order of the requests.
        task_folder: folder with lm-eval task YAML; its tasks win over lm-eval's own of the same name.
        data_dir: folder of JSON Lines that replace hub data sets; None loads from the hub or its cache.
        limit: first documents of every task to keep; None keeps all.
        seed: seeds the draw of few-shot examples.
        chat: turns messages (`role`, `content`) into a prompt that ends where the assistant's answer begins, or
            goes on; None leaves prompts as plain text.
        tokenizer: gives a tokenizer's folder, for tasks of lm-eval that make documents of some length (RULER).
        room: how many new tokens a prompt leaves; documents that leave none have no request. None: any number.
        run_code: True if tasks that are scored by running what a model wrote may be scored.
        constraint: what every answer must be, or the field of the documents that says it.

    Raises:
        UserError: the task folder, or the file of a task, is not specbench's own, and this command does not permit its
            code.
        DataUnavailable: a task's documents, the separate documents its few-shot examples need, or packages that its
            scoring needs are missing.
        ValueError: a task is unknown, does not generate text, has no documents to take few-shot examples from, no
            document with room for new tokens, or would run model-written code outside the task folder's own scoring.

    `left_out` counts the documents without room by task; tasks that keep all of theirs are not in it.
    """

    def __init__(
        self,
        choices: Sequence[TaskChoice],
        *,
        task_folder: Path,
        data_dir: Path | None,
        limit: int | None,
        seed: int,
        chat: Callable[[list[dict[str, str]]], str] | None,
        tokenizer: Callable[[], str] = str,
        room: Callable[[str], int] | None = None,
        run_code: bool = False,
        system: str | None = None,
        multiturn: bool = True,
        constraint: ConstraintSpec | None = None,
    ) -> None:
        _check_own(task_folder)
        files = {choice.task: choice.file for choice in choices if choice.file}
        for file in files.values():
            permissions.check_task_file(file)
        self._run_code = run_code
        self._loaded: dict[str, Any] = {}  # task name -> lm_eval Task
        self._instances: dict[str, list[Any]] = {}  # task name -> lm_eval Instances, one a document
        with cached_templates():
            with quiet():
                manager = task_manager([choice.task for choice in choices if not choice.file], task_folder, files)
            for choice in choices:
                random.seed(seed)  # tasks that generate their documents draw from the global generator
                task = load_task(manager, choice, task_folder, data_dir, tokenizer)
                with quiet():
                    self._instances[choice.task] = build_instances(task, choice, limit, seed, chat, system, multiturn)
                self._loaded[choice.task] = task
        self._requests = [
            request
            for choice in choices
            for request in requests_of(choice, self._instances[choice.task], room, constraint)
        ]
        kept = Counter(request.task for request in self._requests)
        documents = {name: len(instances) for name, instances in self._instances.items()}
        if empty := [name for name, count in documents.items() if count and not kept[name]]:
            raise ValueError(
                f"the prompts of {empty[0]} leave no room for new tokens; use fewer shots or a larger max_length in a "
                "suite file of your own"
            )
        self.left_out = {name: count - kept[name] for name, count in documents.items() if count > kept[name]}

    def names(self) -> list[str]:
        """The tasks that have requests, in order."""
        return list(dict.fromkeys(request.task for request in self._requests))

    def requests(self) -> list[Request]:
        """All texts to generate, in task order, then document order."""
        return list(self._requests)

    def document_count(self, task: str) -> int:
        """How many documents a task has, those without room for new tokens too."""
        return len(self._instances[task])

    def references(self, task: str) -> Iterator[str | None]:
        """Each document's prompt with its reference answer, as lm-eval joins them in few-shot examples.

        None for a document whose reference answer is not text.
        """
        loaded = self._loaded[task]
        for instance in self._instances[task]:
            answer = loaded.doc_to_target(instance.doc)
            answer = answer[0] if isinstance(answer, list) and answer else answer
            prompt = instance.args[0]
            yield f"{prompt}{loaded.config.target_delimiter}{answer}" if isinstance(answer, str) else None

    def about(self, request: Request) -> tuple[str | None, str | None]:
        """The reference answer (several: one a line) and the category of a request's document; None if it has none."""
        instance = self._instances[request.task][request.doc_id]
        assert instance.doc_id == request.doc_id
        try:
            answer = self._loaded[request.task].doc_to_target(instance.doc)
        except Exception:  # a template of the task's own; no answer is shown, and the task is scored all the same
            answer = None
        answers = answer if isinstance(answer, list | tuple) else [answer]
        texts = [text.strip() for text in answers if isinstance(text, str)]
        category = instance.doc.get("category")
        return _written("\n".join(texts)), _written(category)

    def score(self, texts: Mapping[tuple[str, int], str]) -> list[Score]:
        """Score generated texts, keyed by (task, doc_id), with lm-eval's filters, metrics and aggregation.

        Documents without a text are left out, and so is a task without any. Per task: first the scores of the
        documents, then the aggregates. Values that are not single numbers appear in the aggregate only. An answer that
        cannot be scored in time counts as wrong, and a warning names it. A call keeps nothing for the next one. Call it
        from the main thread: some lm-eval metrics use alarm signals.

        Raises:
            UserError: a task with a text runs code, which was not permitted.
        """
        for name in {task for task, _ in texts} & self._loaded.keys():
            if self._loaded[name].config.unsafe_code and not self._run_code:
                raise UserError(f"{name} is scored by running what models wrote; add --allow-code-execution")
        scores: list[Score] = []
        unscored: list[str] = []
        with quiet(), cached_templates():
            for name, task in self._loaded.items():
                answers = [
                    (instance, texts[name, instance.doc_id])
                    for instance in self._instances[name]
                    if (name, instance.doc_id) in texts
                ]
                if answers:
                    task_scores, problems = scores_of(name, task, answers)
                    scores += task_scores
                    unscored += problems
        for line in unscored:
            permissions.tell(f"WARNING: {line}", "bold yellow")
        return scores


def _written(text: Any) -> str | None:
    """A text as a file can hold it; None for anything else, and for an empty one."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) and text else None


def _check_own(task_folder: Path) -> None:
    """Raise UserError for task YAML of others: its functions, includes, metrics and templates are all code."""
    if task_folder.resolve() != (SUITES / "tasks").resolve() and not permissions.code_execution_allowed():
        raise UserError(
            f"task files run code of their own, and those in {task_folder} are not specbench's; if you trust them, "
            "permit it (--allow-code-execution)"
        )


class Scores(Protocol):
    """Documents that give scores of texts, as `Tasks` do."""

    def score(self, texts: Mapping[tuple[str, int], str]) -> list[Score]: ...


def scorer(tasks: Scores, task: str, number: int, metric: str) -> Callable[[str], float]:
    """A function that scores an answer to document `number` of a task; `metric` is lm-eval's `name,filter`."""
    name, _, label = metric.partition(",")

    def score(text: str) -> float:
        (value,) = (
            result.value
            for result in tasks.score({(task, number): text})
            if result.doc_id == number and (result.metric, result.filter) == (name, label)
        )
        return value

    return score
