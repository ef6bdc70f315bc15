"""A user's own tasks, in lm-eval's form: what a plan must know of them, read without running anything of them."""

from pathlib import Path
from typing import Any

from specbench.base.errors import UserError, did_you_mean
from specbench.base.untrusted import is_file, read_mapping
from specbench.config.specs import TaskInfo, TaskLine

MOST_INCLUDES = 8  # files that include each other
MOST_FILES = 1000  # of a folder of tasks
NEW_TOKENS = 256  # of a task that names no number; lm-eval's own
LOCAL_FORMATS = {"json", "csv", "parquet", "text"}


def own_task(path: Path, line: TaskLine | None = None) -> TaskLine:
    """The line of a suite for a task's YAML; `line` has the settings that a suite gave it.

    Its headline is the first metric under the first filter. Raises UserError if there is no task in the file.
    """
    config = config_of(path)
    if {"group", "class", "task_list"} & config.keys() or not isinstance(config.get("task"), str) or not config["task"]:
        raise UserError(f"{path} is not a single task of lm-eval: it needs `task: NAME`, no group, class or task_list")
    base = line or TaskLine(task=config["task"])
    info = info_of(config, str(path))
    return base.model_copy(update={"task": config["task"], "file": str(path.resolve()), "own": info})


def info_of(config: dict[str, Any], description: str) -> TaskInfo:
    """What is known of a task by the keys of its YAML."""
    generation = config.get("generation_kwargs")
    most = generation.get("max_gen_toks") if isinstance(generation, dict) else None
    source = config.get("dataset_path")
    return TaskInfo(
        description=description,
        hub=source if isinstance(source, str) and source not in LOCAL_FORMATS else None,
        data=None,
        metric=_headline(config),
        max_new_tokens=most if isinstance(most, int) and most > 0 else NEW_TOKENS,
    )


def tasks_of_folder(folder: Path) -> dict[str, Path]:
    """The YAML files of a folder and the folders in it, by the task that they hold. Raises UserError."""
    if not folder.is_dir():
        raise UserError(f"--task-dir {folder}: no such folder")
    files: dict[str, Path] = {}
    for count, path in enumerate(sorted(folder.glob("**/*.yaml"))):
        if count == MOST_FILES:
            raise UserError(f"--task-dir {folder} has more than {MOST_FILES} YAML files; name the folder of the tasks")
        name = read_mapping(path, tags=True).get("task") if is_file(path) else None
        if isinstance(name, str):  # other files are included by tasks, or are groups
            if name in files:
                raise UserError(f"{files[name]} and {path} are both called {name}; rename the task of one")
            files[name] = path
    if not files:
        raise UserError(f"--task-dir {folder} holds no task: no .yaml file with `task: NAME`")
    return files


def resolved_line(line: TaskLine, home: Path | None, files: dict[str, Path], where: str) -> TaskLine:
    """A suite's line with what is known of a task of the user; other lines stay as they are.

    `home` is the folder that a path is relative to. Raises UserError, which begins with `where`.
    """
    if line.file or line.own:
        raise UserError(f"{where}: a task has no keys `file` and `own`; write `task: FILE.yaml`")
    if line.task.endswith((".yaml", ".yml")):
        path = (home or Path()) / line.task
        if not is_file(path):
            raise UserError(f"{where}: there is no task file {path}{did_you_mean(line.task, files)}")
        return own_task(path, line)
    return own_task(files[line.task], line) if line.task in files else line


def config_of(path: Path, depth: int = 0) -> dict[str, Any]:
    """The keys of a task's YAML, with those of the files that it includes; its own win, as in lm-eval."""
    if depth > MOST_INCLUDES:
        raise UserError(f"{path}: more than {MOST_INCLUDES} files include each other")
    config = read_mapping(path, tags=True)
    includes = config.pop("include", [])
    merged: dict[str, Any] = {}
    for name in includes if isinstance(includes, list) else [includes]:
        merged |= config_of(path.parent / str(name), depth + 1)
    return merged | config


def _headline(config: dict[str, Any]) -> str:
    """lm-eval's `name,filter` of the first metric and the first filter."""

    def first(key: str, name: str, default: str) -> str:
        entries = config.get(key)
        entry = entries[0] if isinstance(entries, list) and entries else None
        return str(entry[name]) if isinstance(entry, dict) and name in entry else default

    return f"{first('metric_list', 'metric', 'exact_match')},{first('filter_list', 'name', 'none')}"
