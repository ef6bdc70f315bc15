"""lm-eval's own tasks, groups and tags by name: what a plan must know of them, read without importing lm-eval."""

import importlib.util
import re
from collections import defaultdict
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

from specbench.base.errors import UserError, did_you_mean
from specbench.base.untrusted import read_mapping
from specbench.config.own_tasks import config_of, info_of
from specbench.config.specs import TaskLine

TEXT = "generate_until"
_NAMED = re.compile(rb"^(task|group|tag):[ \t]*[\"']?([^\s\"'#\[]+)[\"']?[ \t]*(?:#.*)?$", re.M)
_TAGS = re.compile(rb"^tag:[ \t]*\n((?:[ \t]*-[ \t]*\S+[ \t]*\n)+)", re.M)
OF_GROUP = {"task", "group", "num_fewshot", "task_alias", "group_alias", "include"}  # keys of a group's entry


def lines_of(line: TaskLine, known: tuple[str, ...] = ()) -> list[TaskLine]:
    """The lines of lm-eval's task of a name, or of all tasks of a group or tag, with the settings of `line`.

    Raises:
        UserError: there is none (`known` are names to suggest, too), or a task of it generates no text.
    """
    files = _files()
    names = _expanded(line.task, line.fewshot, files, known, 0)
    averaged = _averaged(line.task, files)
    return [_line(line, name, fewshot, files["task", name][0], averaged) for name, fewshot in names.items()]


def _averaged(name: str, files: dict[tuple[str, str], list[Path]]) -> list[dict[str, Any]]:
    """The entries of `aggregate_metric_list`, what the score of a group is, that weigh its tasks by their documents."""
    if ("task", name) in files or ("group", name) not in files:
        return []
    listed = read_mapping(files["group", name][0], tags=True).get("aggregate_metric_list") or []
    entries = listed if isinstance(listed, list) else [listed]
    return [entry for entry in entries if isinstance(entry, dict) and entry.get("weight_by_size", True)]


def _holds(entry: dict[str, Any], figure: str) -> bool:
    """True if an entry of `aggregate_metric_list` is of a figure, `metric,filter`; without filters it is of all."""
    metric, _, filter_ = figure.partition(",")
    filters = entry.get("filter_list") or [filter_]
    return entry.get("metric") == metric and filter_ in ([filters] if isinstance(filters, str) else filters)


@cache
def _files() -> dict[tuple[str, str], list[Path]]:
    """The YAML files that hold each task, group and tag of lm-eval; empty if it is not installed."""
    spec = importlib.util.find_spec("lm_eval")
    files: defaultdict[tuple[str, str], list[Path]] = defaultdict(list)
    for root in spec.submodule_search_locations or () if spec else ():
        for path in sorted((Path(root) / "tasks").rglob("*.y*ml")):
            text = path.read_bytes()
            for kind, name in _NAMED.findall(text):
                files[kind.decode(), name.decode()].append(path)
            for listed in _TAGS.findall(text):
                for name in re.findall(rb"-[ \t]*[\"']?([^\s\"']+)", listed):
                    files["tag", name.decode()].append(path)
    return dict(files)


def _expanded(
    name: str, fewshot: int | None, files: dict[tuple[str, str], list[Path]], known: tuple[str, ...], depth: int
) -> dict[str, int | None]:
    """The tasks of a name, each with the number of examples that a group says."""
    if depth > 8:
        raise UserError(f"lm-eval's group {name!r} holds itself")
    if ("task", name) in files:
        return {name: fewshot}
    if ("group", name) in files:
        return _members(name, read_mapping(files["group", name][0], tags=True).get("task"), fewshot, files, depth)
    if ("tag", name) in files:
        configs = (read_mapping(path, tags=True).get("task") for path in files["tag", name])
        return {task: fewshot for task in configs if isinstance(task, str)}
    names = [*known, *(each for kind, each in files if kind != "tag")]
    nearest = max(names, key=lambda each: (SequenceMatcher(None, each, name).ratio(), each in known))
    hint = did_you_mean(name, [nearest])
    raise UserError(
        f"no task {name!r}{hint}; `specbench list tasks` shows those with documents or notes of "
        "their own, and lm-eval's are all known by name"
    )


def _members(
    group: str, entries: Any, fewshot: int | None, files: dict[tuple[str, str], list[Path]], depth: int
) -> dict[str, int | None]:
    tasks: dict[str, int | None] = {}
    for entry in entries if isinstance(entries, list) else [entries]:
        own = entry if isinstance(entry, dict) else {"task": entry}
        if more := own.keys() - OF_GROUP - {"aggregate_metric_list", "metadata"}:
            raise UserError(
                f"lm-eval's group {group!r} changes {', '.join(sorted(more))} of its tasks, which is not read; name "
                "the tasks one by one"
            )
        shots = own.get("num_fewshot", fewshot) if fewshot is None else fewshot
        inner = own.get("task")
        if isinstance(inner, list):
            tasks |= _members(group, inner, shots, files, depth + 1)
        else:
            tasks |= _expanded(str(inner or own.get("group")), shots, files, (), depth + 1)
    return tasks


def _line(line: TaskLine, name: str, fewshot: int | None, path: Path, averaged: list[dict[str, Any]]) -> TaskLine:
    """The line of one task, whose group is named if the group's score (`averaged`) is of its headline.

    Raises UserError if it generates no text, or is a class of Python.
    """
    config = config_of(path)
    whole = f" (of {line.task})" if name != line.task else ""
    if "class" in config:
        raise UserError(
            f"lm-eval's task {name!r}{whole} is a class of its own, which makes its requests; it is not read"
        )
    if (kind := config.get("output_type", TEXT)) != TEXT:
        raise UserError(
            f"lm-eval's task {name!r}{whole} is scored by log-likelihoods of given answers (output type {kind}) and "
            "generates no text, so there is nothing to speculate on; choose a task of output type generate_until"
        )
    info = info_of(config, f"lm-eval's {name}").model_copy(update={"data": name})
    group = line.task if any(_holds(entry, info.metric) for entry in averaged) else None
    return line.model_copy(update={"task": name, "own": info, "fewshot": fewshot, "group": group})
