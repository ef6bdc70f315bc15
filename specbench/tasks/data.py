"""Where documents come from: lm-eval's task definitions, the hub or its cache, and local files in their place.

lm-eval is imported when a function here is called, not before.
"""

import contextlib
import functools
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench import permissions
from specbench.base.errors import UserError, did_you_mean
from specbench.base.hub import offline, online

NLTK_DATA = {"ifeval": "tokenizers/punkt_tab"}  # what scoring a task reads; without it, only the scoring would fail
GENERATED_LENGTH = 4096  # tokens of documents that lm-eval generates itself
LOCAL_FORMATS = {"json", "csv", "parquet", "text"}


class DataUnavailable(Exception):
    """A task's documents cannot be loaded. The message is one line that says what would help."""


@dataclass(frozen=True)
class TaskChoice:
    """One task of a suite.

    `task` is the lm-eval name. `fewshot` None keeps the task's own number of examples. `max_new_tokens` is the number
    used when the task names none, and the upper limit when it does. `data` is the stem of the files
    `<data>_<split>.jsonl` in the data folder (`<data>_val.jsonl` if there is no `<data>_test.jsonl`); None if the task
    is never replaced. `hub` (the hub data set) and `counterpart` (the bundled task or tasks that can stand in) appear
    in error messages only. `split` takes the documents from this split instead of the one that the task
    evaluates; there are no few-shot examples if they would come from the same split. `same_shots` gives all documents
    the first few-shot examples; otherwise lm-eval draws some for each. `file` is the YAML of a user's own task, which
    wins over others of its name; paths of data files in it are relative to its folder.
    """

    task: str
    fewshot: int | None
    max_new_tokens: int
    data: str | None
    hub: str
    counterpart: str | tuple[str, ...] | None
    split: str | None = None
    same_shots: bool = False
    file: Path | None = None

    @property
    def stand_in(self) -> str:
        """The words that recommend the counterpart; empty without one."""
        several = isinstance(self.counterpart, tuple)
        names = ", ".join(self.counterpart) if isinstance(self.counterpart, tuple) else self.counterpart
        return f"use the bundled task{'s' * several} {names}" if names else ""


def task_manager(names: Sequence[str], task_folder: Path, files: Mapping[str, Path] | None = None) -> Any:
    """An lm-eval TaskManager that knows `names` and the tasks in `files`. Raises ValueError for an unknown one.

    Reading all of lm-eval's YAML takes seconds, so it first reads only the folders that match the name of a wanted
    task.
    """
    import lm_eval.tasks
    from lm_eval.tasks._index import Entry, Kind
    from lm_eval.tasks._yaml_loader import load_yaml

    root = Path(lm_eval.tasks.__file__).parent
    likely = sorted(
        folder
        for folder in root.iterdir()
        if folder.is_dir() and any(name.startswith(folder.name) or (folder / f"{name}.yaml").exists() for name in names)
    )
    manager = lm_eval.tasks.TaskManager(include_defaults=False, include_path=[*likely, task_folder])
    if not set(names) <= set(manager.all_subtasks):
        manager = lm_eval.tasks.TaskManager(include_path=[task_folder])
    for name in names:
        if name not in manager.all_subtasks:
            hint = did_you_mean(name, manager.all_subtasks)
            raise ValueError(f"lm-eval has no task {name!r} and neither has {task_folder}{hint}")
    for name, path in (files or {}).items():
        config = load_yaml(path, resolve_func=False)
        manager.task_index[name] = Entry(name=name, kind=Kind.TASK, yaml_path=path, cfg=config)
    return manager


def evaluated_split(task: str, task_folder: Path) -> str:
    """The split whose documents a task evaluates."""
    with quiet():
        config = task_manager([task], task_folder).task_index[task].cfg
    return _evaluated(config)


def load_task(
    manager: Any, choice: TaskChoice, task_folder: Path, data_dir: Path | None, tokenizer: Callable[[], str]
) -> Any:
    """The lm-eval task of a choice with its documents; few-shot examples never come from those to be scored.

    Raises DataUnavailable and ValueError as `Tasks` does.
    """
    entry = manager.task_index[choice.task]
    config = entry.cfg
    ours = entry.yaml_path.resolve().is_relative_to(task_folder.resolve())
    _check_allowed(choice, config, ours, task_folder)
    fewshot = (config.get("num_fewshot") or 0) if choice.fewshot is None else choice.fewshot
    if choice.split:
        examples = config.get("fewshot_split") or config.get("training_split")
        config, fewshot = {**config, "test_split": choice.split}, 0 if choice.split == examples else fewshot
    overrides: dict[str, Any] = {"task": choice.task, "num_fewshot": fewshot, "test_split": config.get("test_split")}
    fixed_examples = (config.get("fewshot_config") or {}).get("samples")
    if choice.same_shots and not fixed_examples:  # fixed ones are the same for all documents anyway
        overrides["fewshot_config"] = {**(config.get("fewshot_config") or {}), "sampler": "first_n"}
    needs_train = fewshot > 0 and not fixed_examples
    # A custom data set that has a path comes from the hub and is split again.
    generated = "custom_dataset" in config and not config.get("dataset_path")
    local = generated or config.get("dataset_path") in LOCAL_FORMATS
    if "custom_dataset" in config and not ours and not choice.file:
        overrides["dataset_kwargs"] = {"tokenizer": tokenizer(), "max_seq_lengths": [GENERATED_LENGTH]}
    if choice.file and (kwargs := _beside(choice.file.parent, config)):
        overrides["dataset_kwargs"] = kwargs
    if data_dir is not None and choice.data is not None:
        overrides |= _replacement(choice, config, data_dir, needs_train)
        local = True
    else:
        evaluated = config.get("test_split") or config.get("validation_split")
        source = config.get("fewshot_split") or config.get("training_split") or config.get("validation_split")
        if needs_train and source in (None, evaluated):
            raise ValueError(f"task {choice.task!r} has no documents for few-shot examples besides those it scores")
    if choice.file:
        permissions.tell(f"this task's own code runs: {choice.file}", "dim")
    return _load(manager, choice, config, overrides, local)


def _beside(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The `dataset_kwargs` of a user's own task, with paths of data from `folder`; empty if there are none.

    A file that is not in `folder` is looked for where the command runs, as lm-eval does. Raises ValueError for one that
    is in neither.
    """

    def located(path: Any) -> Any:
        if isinstance(path, list):
            return [located(inner) for inner in path]
        if isinstance(path, dict):
            return {split: located(inner) for split, inner in path.items()}
        if not isinstance(path, str) or "://" in path or any(sign in path for sign in "*?["):
            return str(folder / path) if isinstance(path, str) and "://" not in path else path
        there = next((place / path for place in (folder, Path()) if (place / path).exists()), None)
        if there is None:
            raise ValueError(f"task {config.get('task')!r} reads {path}, and {folder} has no such file")
        return str(there.resolve())

    kwargs = config.get("dataset_kwargs") or {}
    return {key: located(value) if key in ("data_files", "data_dir") else value for key, value in kwargs.items()}


def _check_allowed(choice: TaskChoice, config: Mapping[str, Any], ours: bool, task_folder: Path) -> None:
    """Raise ValueError for a task that does not generate text, or that runs code outside our own scoring."""
    if config.get("output_type", "generate_until") != "generate_until":
        raise ValueError(
            f"task {choice.task!r} has output type {config['output_type']}; specbench needs generate_until"
        )
    if config.get("unsafe_code") and not ours:
        raise ValueError(
            f"task {choice.task!r} runs model-written code; specbench runs such tasks of {task_folder} only"
        )


def _load(manager: Any, choice: TaskChoice, config: Mapping[str, Any], overrides: dict[str, Any], local: bool) -> Any:
    # A group of one is lm-eval's way to load a task with parts of its configuration replaced.
    group = [{"group": "specbench", "task": [overrides]}]
    try:
        if choice.task in NLTK_DATA:
            _check_nltk(NLTK_DATA[choice.task])
        try:
            with offline(), quiet():
                return manager.load(group)["tasks"][choice.task]
        except Exception as error:
            if local or not _from_hub(error) or not permissions.may_fetch(choice.hub):
                raise
        with online(f"the data set {choice.hub}"), quiet():
            return manager.load(group)["tasks"][choice.task]
    except ImportError as error:
        missing = " ".join((error.name or str(error)).split())[:80]
        stand_in = f", or {choice.stand_in}" if choice.stand_in else ""
        raise DataUnavailable(
            f"{choice.task} needs a package or data that is missing ({missing}); install lm-eval's extras for it "
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
    """Raise ImportError if a data package of nltk is missing."""
    import nltk

    try:
        nltk.data.find(data)
    except LookupError:
        name = data.rpartition("/")[2]
        raise ImportError(name, name=f"nltk's data: python -m nltk.downloader {name}") from None


def _from_hub(error: Exception) -> bool:
    """True if loading failed because a hub data set is unreachable, does not exist or is not in the cache."""
    not_cached = isinstance(error, ValueError) and "cache" in str(error)
    return isinstance(error, OSError | UserError) or not_cached or type(error).__module__.startswith("httpx")


def _evaluated(config: Mapping[str, Any]) -> str:
    return str(config.get("test_split") or config.get("validation_split") or "test")


def _replacement(choice: TaskChoice, config: Mapping[str, Any], data_dir: Path, needs_train: bool) -> dict[str, Any]:
    """Configuration that reads the evaluated documents, and few-shot examples if needed, from `data_dir`."""
    evaluated = _evaluated(config)
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
    if "data_files" in (config.get("dataset_kwargs") or {}):  # the task reads such files itself
        return {"dataset_kwargs": {"data_files": files}, "test_split": evaluated}
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
    """The error for a task whose data set has a `problem`; `split` is the missing one, None for the evaluated one."""
    name = f"{choice.data}_{split or _evaluated(config)}.jsonl"
    advice = [f"put {name} in a folder and name it with --data-dir"] if choice.data else []
    advice += [choice.stand_in] if choice.stand_in else []
    advice += [] if split or permissions.may_fetch(choice.hub) else ["add --fetch-models"]
    text = f"{choice.task}: the hub data set {choice.hub} {problem}"
    return DataUnavailable("; ".join([text, ", or ".join(advice)]) if advice else text)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence log lines, prints and progress bars of lm-eval and the libraries under it; restores all on exit."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def cached_templates() -> Iterator[None]:
    """Compile each template of a task once; lm-eval compiles them for every document, most of the time of loading."""
    from lm_eval.utils import env

    env.from_string = functools.cache(env.from_string)
    try:
        yield
    finally:
        del env.from_string
