"""The only door to lm-evaluation-harness: prompts and generation settings out, scores in.

lm-eval drives one model over all documents. specbench drives all methods over each document, so it takes the two
halves of lm-eval apart: `Tasks.requests` has lm-eval build every prompt, `Tasks.score` replays stored texts through
lm-eval's own filters, metrics and aggregation. lm-eval is imported when `Tasks` is first made, not before.
"""

import contextlib
import difflib
import functools
import hashlib
import io
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from specbench.config import UserError
from specbench.hub import offline_if_unreachable

_BOOTSTRAP_ITERATIONS = 1000  # only for metrics that lm-eval has no closed formula for
_NLTK_DATA = {"ifeval": "tokenizers/punkt_tab"}  # what the scoring of a task reads, and would miss only at the end
_LENGTH = 4096  # tokens of documents that lm-eval makes itself
_LOCAL_FORMATS = {"json", "csv", "parquet", "text"}


class DataUnavailable(Exception):
    """A task's documents cannot be loaded. The message is one line that says what would help."""


@dataclass(frozen=True)
class TaskChoice:
    """One task of a suite.

    `task` is the lm-eval name; `fewshot` None keeps the task's own number; `max_new_tokens` is both the number used
    when the task names none and the upper limit when it does; `data` is the stem of the files `<data>_<split>.jsonl`
    in the data folder (`<data>_val.jsonl` where there is no `<data>_test.jsonl`), None if the task is never replaced;
    `hub` and `counterpart` (the hub data set and the task or tasks with bundled data that stand in for this one) appear
    in error messages only; `split` takes the documents from another split than the one that the task evaluates, without
    few-shot examples if they come from that split; `same_shots` takes the first few-shot examples for all documents,
    where lm-eval draws some for each.
    """

    task: str
    fewshot: int | None
    max_new_tokens: int
    data: str | None
    hub: str
    counterpart: str | tuple[str, ...] | None
    split: str | None = None
    same_shots: bool = False

    @property
    def stand_in(self) -> str:
        """The words that name the counterpart; empty without one."""
        several = isinstance(self.counterpart, tuple)
        names = ", ".join(self.counterpart) if isinstance(self.counterpart, tuple) else self.counterpart
        return f"use the bundled task{'s' * several} {names}" if names else ""


@dataclass(frozen=True)
class Request:
    """One text to generate. `doc_id` counts documents of a task from 0; `until` holds the task's own stop strings,
    without the model's end-of-sequence text; the hashes are the first 16 hex digits of SHA-256."""

    task: str
    doc_id: int
    prompt: str
    until: tuple[str, ...]
    max_new_tokens: int
    prompt_hash: str
    doc_hash: str


@dataclass(frozen=True)
class Score:
    """One metric under one lm-eval filter: of a document, or of all scored documents of the task (`doc_id` None).
    `stderr` is lm-eval's standard error of the aggregate, None where it defines none."""

    task: str
    doc_id: int | None
    metric: str
    filter: str
    value: float
    stderr: float | None


class Tasks:
    """The lm-eval tasks of a suite, with their documents and prompts.

    Args:
        choices: the tasks, in the order of the requests.
        task_folder: folder with lm-eval task YAML; its tasks win over lm-eval's own of the same name.
        data_dir: folder of JSON Lines that replace hub data sets; None loads from the hub or its cache.
        limit: first documents of every task to keep; None keeps all.
        seed: seeds the draw of few-shot examples.
        chat: turns messages (`role`, `content`) into a prompt that ends where the assistant's answer begins;
            None leaves prompts as plain text.
        tokenizer: name or folder, for tasks of lm-eval that make their documents by length (RULER).
        room: how many new tokens a prompt leaves; documents that leave none have no request. None: any number.
        run_code: whether tasks that are scored by running what a model wrote may be scored.

    Raises:
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
        tokenizer: str = "",
        room: Callable[[str], int] | None = None,
        run_code: bool = False,
    ) -> None:
        self._choices = tuple(choices)
        self._run_code = run_code
        self._loaded: dict[str, Any] = {}  # task name -> lm_eval Task
        self._instances: dict[str, list[Any]] = {}  # task name -> lm_eval Instances, one a document
        with _quiet(), _compiled_once():
            manager = _manager([choice.task for choice in self._choices], task_folder)
            for choice in self._choices:
                random.seed(seed)  # tasks that make their documents draw from the global generator
                task = _load(manager, choice, task_folder, data_dir, tokenizer)
                task.set_fewshot_seed(seed)
                with _enough_shots(choice):
                    task.build_all_requests(
                        limit=limit,
                        apply_chat_template=chat is not None,
                        fewshot_as_multiturn=chat is not None,  # as the lm_eval command does
                        chat_template=None if chat is None else _chat_template(chat),
                    )
                self._loaded[choice.task] = task
                self._instances[choice.task] = task.instances
        self._requests = [one for choice in self._choices for one in self._of(choice, room)]
        kept = Counter(one.task for one in self._requests)
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

    def _of(self, choice: TaskChoice, room: Callable[[str], int] | None) -> Iterator[Request]:
        """The requests of one task."""
        from lm_eval.models.utils import normalize_gen_kwargs

        for instance in self._instances[choice.task]:
            prompt, settings = instance.args
            settings = normalize_gen_kwargs(settings, choice.max_new_tokens)
            most = min(settings["max_gen_toks"], choice.max_new_tokens)
            if room:
                most = min(most, room(prompt))
            if most > 0:
                yield Request(
                    task=choice.task,
                    doc_id=instance.doc_id,
                    prompt=prompt,
                    until=tuple(settings["until"]),
                    max_new_tokens=most,
                    prompt_hash=_hash(prompt),
                    doc_hash=_hash(json.dumps(instance.doc, sort_keys=True, ensure_ascii=False, default=str)),
                )

    def score(self, texts: Mapping[tuple[str, int], str]) -> list[Score]:
        """Score generated texts, given by (task, doc_id), with lm-eval's filters, metrics and aggregation.

        Documents without a text are left out, and so is a task without any. Per task: first the scores of the
        documents, then the aggregates. Values that are not single numbers appear in the aggregate only. Nothing of a
        former call is kept. Call it from the main thread: some lm-eval metrics use alarm signals.

        Raises:
            UserError: a task with a text runs code, which was not permitted.
        """
        for name in {task for task, _ in texts} & self._loaded.keys():
            if self._loaded[name].config.unsafe_code and not self._run_code:
                raise UserError(f"{name} is scored by running what models wrote; add --allow-code-execution")
        found: list[Score] = []
        with _quiet(), _compiled_once():
            for name, task in self._loaded.items():
                instances = [
                    _replayed(x, texts[name, x.doc_id]) for x in self._instances[name] if (name, x.doc_id) in texts
                ]
                if instances:
                    found += _scores(name, task, instances)
        return found


@contextlib.contextmanager
def _enough_shots(choice: TaskChoice) -> Iterator[None]:
    """lm-eval's words for want of examples name neither the task nor the number."""
    try:
        yield
    except (AssertionError, ValueError) as error:
        if not choice.fewshot or not any(word in str(error) for word in ("Sample larger", "shot", "num_fewshot")):
            raise
        raise ValueError(
            f"task {choice.task!r} has fewer than {choice.fewshot} few-shot examples; ask for fewer in a suite file"
        ) from None


def scorer(tasks: Tasks, task: str, number: int, metric: str) -> Callable[[str], float]:
    """A function from an answer to a document, by its number, to its score; `metric` is lm-eval's `name,filter`."""
    name, _, label = metric.partition(",")

    def score(text: str) -> float:
        (value,) = (
            one.value
            for one in tasks.score({(task, number): text})
            if one.doc_id == number and (one.metric, one.filter) == (name, label)
        )
        return value

    return score


def _scores(name: str, task: Any, instances: list[Any]) -> list[Score]:
    """Scores of one task from `instances` that carry their text; replaces the instances `task` holds."""
    from lm_eval.api.metrics import mean, stderr_for_metric

    task._instances = instances  # lm-eval filters what the task holds; it offers no other way in
    task.apply_filters()
    documents: list[Score] = []
    columns: dict[tuple[str, str], list[Any]] = {}
    for label in instances[0].filtered_resps:
        for instance in instances:
            for metric, value in task.process_results(instance.doc, [instance.filtered_resps[label]]).items():
                columns.setdefault((metric, label), []).append(value)
                if isinstance(value, Real):
                    documents.append(Score(name, instance.doc_id, metric, label, float(value), None))
    aggregates = []
    for (metric, label), values in columns.items():
        aggregate = task.aggregation().get(metric, mean)
        stderr = stderr_for_metric(aggregate, _BOOTSTRAP_ITERATIONS) if len(values) > 1 else None
        error = None if stderr is None else float(stderr(values))
        aggregates.append(Score(name, None, metric, label, float(aggregate(values)), error))
    return documents + aggregates


def _replayed(instance: Any, text: str) -> Any:
    """A copy of an lm-eval Instance that has `text` as its only response."""
    from lm_eval.api.instance import Instance

    return Instance(
        request_type=instance.request_type,
        doc=instance.doc,
        arguments=instance.arguments,
        idx=instance.idx,
        metadata=instance.metadata,
        resps=[text],
    )


def _manager(names: Sequence[str], task_folder: Path) -> Any:
    """An lm-eval TaskManager that knows `names`. Reading all of lm-eval's YAML takes seconds, so it first reads only
    the folders whose name begins the name of a wanted task."""
    import lm_eval.tasks

    root = Path(lm_eval.tasks.__file__).parent
    likely = sorted(
        x
        for x in root.iterdir()
        if x.is_dir() and any(n.startswith(x.name) or (x / f"{n}.yaml").exists() for n in names)
    )
    manager = lm_eval.tasks.TaskManager(include_defaults=False, include_path=[*likely, task_folder])
    if not set(names) <= set(manager.all_subtasks):
        manager = lm_eval.tasks.TaskManager(include_path=[task_folder])
    for name in names:
        if name not in manager.all_subtasks:
            close = difflib.get_close_matches(name, manager.all_subtasks, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise ValueError(f"lm-eval has no task {name!r} and neither has {task_folder}{hint}")
    return manager


def _load(manager: Any, choice: TaskChoice, task_folder: Path, data_dir: Path | None, tokenizer: str) -> Any:
    """The lm-eval task of a choice, with its documents, few-shot examples never taken from those to be scored."""
    entry = manager.task_index[choice.task]
    config = entry.cfg
    if config.get("output_type", "generate_until") != "generate_until":
        raise ValueError(
            f"task {choice.task!r} has output type {config['output_type']}; specbench needs generate_until"
        )
    if config.get("unsafe_code") and not entry.yaml_path.resolve().is_relative_to(task_folder.resolve()):
        raise ValueError(
            f"task {choice.task!r} runs model-written code; specbench runs such tasks of {task_folder} only"
        )
    fewshot = (config.get("num_fewshot") or 0) if choice.fewshot is None else choice.fewshot
    if choice.split:
        examples = config.get("fewshot_split") or config.get("training_split")
        config, fewshot = {**config, "test_split": choice.split}, 0 if choice.split == examples else fewshot
    overrides: dict[str, Any] = {"task": choice.task, "num_fewshot": fewshot, "test_split": config.get("test_split")}
    if choice.same_shots and not (config.get("fewshot_config") or {}).get("samples"):  # those are the same anyway
        overrides["fewshot_config"] = {**(config.get("fewshot_config") or {}), "sampler": "first_n"}
    needs_train = fewshot > 0 and not (config.get("fewshot_config") or {}).get("samples")
    made = "custom_dataset" in config and not config.get("dataset_path")  # with a path: a data set that is split anew
    local = made or config.get("dataset_path") in _LOCAL_FORMATS
    if "custom_dataset" in config and not entry.yaml_path.resolve().is_relative_to(task_folder.resolve()):
        overrides["dataset_kwargs"] = {"tokenizer": tokenizer, "max_seq_lengths": [_LENGTH]}
    if data_dir is not None and choice.data is not None:
        overrides |= _replacement(choice, config, data_dir, needs_train)
        local = True
    else:
        evaluated = config.get("test_split") or config.get("validation_split")
        source = config.get("fewshot_split") or config.get("training_split") or config.get("validation_split")
        if needs_train and source in (None, evaluated):
            raise ValueError(f"task {choice.task!r} has no documents for few-shot examples besides those it scores")
    try:
        if choice.task in _NLTK_DATA:
            _check_nltk(_NLTK_DATA[choice.task])
        with contextlib.nullcontext() if local else offline_if_unreachable():
            # a group of one is lm-eval's way to load a task with parts of its configuration replaced
            return manager.load([{"group": "specbench", "task": [overrides]}])["tasks"][choice.task]
    except ImportError as error:
        missing = " ".join((error.name or str(error)).split())[:80]
        stand_in = f", or {choice.stand_in}" if choice.stand_in else ""
        raise DataUnavailable(
            f"{choice.task} needs what is not installed ({missing}); install lm-eval's extras for it "
            f"(pip install 'lm-eval[ifeval,ruler]'){stand_in}"
        ) from None
    except Exception as error:
        if choice.split and isinstance(error, KeyError):
            raise ValueError(f"task {choice.task!r} has no documents of a split {choice.split!r}") from None
        if local or not _from_hub(error):
            raise
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise _unavailable(choice, config, f"cannot be loaded ({cause})") from error


def _check_nltk(data: str) -> None:
    """Raise ImportError where a data package of nltk is missing."""
    import nltk

    try:
        nltk.data.find(data)
    except LookupError:
        name = data.rpartition("/")[2]
        raise ImportError(name, name=f"nltk's data: python -m nltk.downloader {name}") from None


def _from_hub(error: Exception) -> bool:
    """Whether loading a hub data set failed for want of the data: unreachable, not there, or not in the cache."""
    not_cached = isinstance(error, ValueError) and "cache" in str(error)
    return isinstance(error, OSError) or not_cached or type(error).__module__.startswith("httpx")


def _replacement(choice: TaskChoice, config: Mapping[str, Any], data_dir: Path, needs_train: bool) -> dict[str, Any]:
    """Configuration that reads the evaluated documents, and few-shot examples if needed, from `data_dir`."""
    evaluated = config.get("test_split") or config.get("validation_split") or "test"
    files = {}
    for split in [evaluated, "train"] if needs_train else [evaluated]:
        path = data_dir / f"{choice.data}_{split}.jsonl"
        if split == "test" and not path.is_file():
            path = data_dir / f"{choice.data}_val.jsonl"
        if not path.is_file():
            use = "documents" if split == evaluated else "few-shot examples"
            raise _unavailable(choice, config, f"is replaced, but {data_dir} has no file for the {use}", split)
        files[split] = str(path.resolve())
    train = "train" if needs_train else None
    return {
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files},
        "custom_dataset": None,
        "training_split": train,
        "fewshot_split": train,
        "validation_split": None,
        "test_split": evaluated,
    }


def _unavailable(
    choice: TaskChoice, config: Mapping[str, Any], problem: str, split: str | None = None
) -> DataUnavailable:
    """The error for a task whose data set has a `problem`; `split` is the missing one, None for the evaluated."""
    split = split or config.get("test_split") or config.get("validation_split") or "test"
    advice = [f"put {choice.data}_{split}.jsonl in a folder and name it with --data-dir"] if choice.data else []
    advice += [choice.stand_in] if choice.stand_in else []
    return DataUnavailable("; ".join([f"{choice.task}: the hub data set {choice.hub} {problem}", ", or ".join(advice)]))


def _chat_template(chat: Callable[[list[dict[str, str]]], str]) -> Callable[..., str]:
    """`chat` as lm-eval calls it; a last assistant message that the model shall continue is appended as text."""

    def template(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if add_generation_prompt:
            return chat(messages)
        return chat(messages[:-1]) + messages[-1]["content"]

    return template


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence log lines, prints and progress bars of lm-eval and the libraries under it; restores all on exit."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def _compiled_once() -> Iterator[None]:
    """lm-eval compiles the templates of a task anew for every document, which takes most of the time of loading one."""
    from lm_eval.utils import env

    env.from_string = functools.cache(env.from_string)
    try:
        yield
    finally:
        del env.from_string


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
