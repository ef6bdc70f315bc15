"""Pairs, methods, suites and tasks by name or file. A wrong name or key is an error that helps."""

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from specbench.base.errors import UserError, did_you_mean, wrong_value
from specbench.base.untrusted import read_mapping
from specbench.config import plugins
from specbench.config.specs import (
    BUNDLED,
    CACHED,
    GGUF,
    PACKAGED,
    WEIGHTS,
    MemberSpec,
    MethodLine,
    MethodSpec,
    ModelSpec,
    PairSpec,
    SamplingSpec,
    Setting,
    SuiteSpec,
    TaskInfo,
    TaskLine,
    is_own,
)

PACKAGE = Path(__file__).parent.parent
# Next to the package in a checkout, inside it when installed from a wheel.
SUITES = next(p for p in (PACKAGE.parent / "suites", PACKAGE / "suites") if p.exists())


def _data() -> Path:
    """The folder of the bundled models and of what was trained for them, which another package brings to a wheel."""
    brought = None if (SUITES / "trained").is_dir() else importlib.util.find_spec("specbench_pocket")
    places = list(brought.submodule_search_locations or ()) if brought else []
    return Path(places[0]) if places else SUITES


DATA = _data()
Spec = TypeVar("Spec", bound=BaseModel)


def names(kind: str) -> list[str]:
    """The names in suites/; kind is `pairs`, `methods` or `suites`."""
    return sorted(files(kind))


def files(kind: str) -> dict[str, Path]:
    """The YAML files by name; kind is `pairs`, `methods`, which lie in families, or `suites`.

    Those of the extras' methods lie next to their modules, and those of their suites in a folder `suites` there.
    """
    return dict(_files(kind, _folder(kind), tuple(sys.path)))


@cache  # what is shipped stays as it is; a table asks for it thousands of times
def _files(kind: str, folder: Path, path: tuple[str, ...]) -> dict[str, Path]:
    own = {path.stem: path for path in folder.glob("**/*.yaml" if kind == "methods" else "*.yaml")}
    if kind == "methods":
        brought = [plugins.folder(entry) / f"{name}.yaml" for name, entry in plugins.extras("methods").items()]
        return {path.stem: path for path in brought if path.is_file()} | own
    return {path.stem: path for folder in plugins.folders() for path in folder.glob(f"{kind}/*.yaml")} | own


def load_pair(text: str | PairSpec) -> PairSpec:
    """A pair by name, by YAML file, or as `target=NAME_OR_PATH,draft=NAME_OR_PATH`; a pair itself as it is."""
    if isinstance(text, PairSpec):
        return text
    if "=" not in text:
        return _load(PairSpec, "pairs", text)
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    if unknown := set(parts) - {"target", "draft"}:
        raise UserError(f"--pair has no {unknown.pop()!r}; write target=NAME_OR_PATH,draft=NAME_OR_PATH")
    if not parts.get("target") or parts.get("draft") == "":
        raise UserError("--pair needs a target: target=NAME_OR_PATH,draft=NAME_OR_PATH")
    return own_pair(parts["target"], parts.get("draft"))


def own_pair(target: str, draft: str | None = None) -> PairSpec:
    """The pair of two models by folder or hub name, called after both. Raises UserError for a folder that is not there.

    Folders are made absolute, so that a run goes on from anywhere.
    """
    models = {"target": target} | ({"draft": draft} if draft else {})
    specs = {role: ModelSpec(model=_located(role, name), dtype="auto") for role, name in models.items()}
    short = [Path(model.model).name.removesuffix(GGUF) or model.model for model in specs.values()]
    described = ",".join(f"{role}={name}" for role, name in models.items())
    name = "-".join(dict.fromkeys(short))
    name = f"own-{name}" if name in names("pairs") else name
    return PairSpec(name=name, description=described, target=specs["target"], draft=specs.get("draft"))


def with_weights(text: str | PairSpec, assignments: Sequence[str]) -> PairSpec:
    """A pair whose models are quantised on loading: `int8` is for all of them, `draft=int4` for one; it has a new name.

    Raises UserError for a role or a scheme that does not exist.
    """
    pair = load_pair(text)
    chosen: dict[str, str] = {}
    for assignment in assignments:
        role, _, scheme = assignment.rpartition("=")
        roles = [role] if role else list(pair.models)
        if scheme not in WEIGHTS or not set(roles) <= pair.models.keys():
            raise UserError(
                f"--weights {assignment}: write {', '.join(WEIGHTS)} for all models, or ROLE=SCHEME for one; "
                f"{pair.name} has {', '.join(pair.models)}"
            )
        chosen |= dict.fromkeys(roles, scheme)
    models: dict[str, Any] = {
        role: model.model_copy(update={"weights": chosen[role]})
        for role, model in (("target", pair.target), ("draft", pair.draft))
        if model and role in chosen
    }
    members = [
        member.model_copy(update={"weights": chosen[role]}) if role in chosen and role not in models else member
        for role, member in zip(pair.collaboration, pair.members, strict=False)
    ]
    every = chosen.keys() == pair.models.keys() and len({*chosen.values()}) == 1
    words = next(iter(chosen.values())) if every else "-".join(f"{role}-{scheme}" for role, scheme in chosen.items())
    return pair.model_copy(update=models | {"members": tuple(members), "name": f"{pair.name}-{words}"})


def with_draft_device(text: str | PairSpec, device: str) -> PairSpec:
    """A pair whose draft models and heads are on this device, wherever its target is."""
    return load_pair(text).model_copy(update={"draft_device": device})


def _located(role: str, name: str) -> str:
    """A model's folder from the root, or its name as it is. Raises UserError for a path that leads to no folder."""
    path = Path(name).expanduser()
    if not name or "\0" in name:
        raise UserError(f"--{role} {name!r}: give a folder with a model, or a name on the hub")
    if name.startswith((BUNDLED, PACKAGED, CACHED)):
        return name
    try:
        if path.is_dir() or (path.is_file() and path.suffix == GGUF):
            return str(path.resolve())
        there = path.exists()
    except OSError:
        there = False
    if there:
        raise UserError(f"--{role} {name}: it is a file; give a GGUF file, or the folder with config.json and weights")
    if name.startswith(("/", ".", "~")) or name.endswith("/") or name.count("/") > 1:
        raise UserError(f"--{role} {name}: no such folder")
    return name


def load_suite(text: str, task_dir: Path | None = None) -> SuiteSpec:
    """A suite by name or YAML file. `task_dir`: a folder of tasks, which win over others of their names.

    Raises:
        UserError: there is no such suite, or a task of it does not exist.
    """
    suite = _load(SuiteSpec, "suites", text)
    home = Path(text).parent if text.endswith((".yaml", ".yml")) else None
    return suite.model_copy(update={"tasks": checked_lines(suite.tasks, home, task_dir, text)})


def checked_lines(
    lines: Sequence[TaskLine], home: Path | None, task_dir: Path | None, where: str
) -> tuple[TaskLine, ...]:
    """The lines of a suite with what is known of tasks of the user: those in `task_dir`, and YAML relative to `home`.

    Tasks, groups and tags of lm-eval that index.yaml does not have are read from lm-eval's own files.

    Raises:
        UserError: a task does not exist or generates no text, or two files hold tasks of one name.
    """
    files: dict[str, Path] = {}
    resolved = lines
    if task_dir or any(line.file or line.own or line.task.endswith((".yaml", ".yml")) for line in lines):
        from specbench.config.own_tasks import resolved_line, tasks_of_folder

        files = tasks_of_folder(task_dir) if task_dir else {}
        resolved = [resolved_line(line, home, files, where) for line in lines]
    known = (*files, *tasks())
    checked = tuple(each for line in resolved for each in _expanded(line, known))
    sources: dict[str, str | None] = {}
    for line in checked:
        if sources.setdefault(line.task, line.file) != line.file:
            raise UserError(f"{where}: two different tasks are called {line.task}; rename the task of one file")
    return checked


def _expanded(line: TaskLine, known: Sequence[str]) -> Sequence[TaskLine]:
    """A line of a task that is known, or the lines of what only lm-eval knows."""
    if line.own or line.task in tasks():
        return (line,)
    from specbench.config import lm_eval_tasks

    return lm_eval_tasks.lines_of(line, tuple(known))


def load_method(text: str) -> MethodSpec:
    """A method by name, YAML file or FILE.py. A variant names a `method` and changes some of its settings."""
    shipped = files("methods")
    if text in shipped:
        return _shipped_method(shipped[text]).model_copy(deep=True)
    from specbench.config import own_methods  # here and below: most runs have none

    if own_methods.implementation(text):
        raw = own_methods.read(text, sorted(shipped))
        return _method(raw, str(own_methods.yaml_of(raw["method"])) if raw.get("settings") else text)
    raw, name = _read("methods", text)
    if text.endswith((".yaml", ".yml")):
        raw["method"] = _base_of(str(raw.get("method")), text, sorted(shipped))
    return _whole(raw, name, text)


@cache  # a YAML takes some 10 ms to parse, and `methods.names` asks for all
def _shipped_method(path: Path) -> MethodSpec:
    return _whole(read_mapping(path, path.stem), path.stem, path.stem)


def _whole(raw: dict[str, Any], name: str, text: str) -> MethodSpec:
    """The method of a YAML `text`: with the settings of the method that it is a variant of, if it is one."""
    spec = _method({**raw, "name": name}, text)
    if text == spec.method:
        return spec
    return override(load_method(spec.method), spec.settings).model_copy(
        update={key: getattr(spec, key) for key in ("name", "description", "paper", *({"baseline"} & raw.keys()))}
    )


def _base_of(base: str, text: str, shipped: list[str]) -> str:
    """The method that the YAML file `text` names; a FILE.py lies next to it. Raises UserError if there is none."""
    if base.endswith(".py"):
        return str((Path(text).parent / base).resolve())
    from specbench.config import own_methods

    if base not in shipped and not own_methods.implementation(base):
        raise UserError(f"{text}: no method {base!r}{did_you_mean(base, shipped)}; `specbench list methods` shows all")
    return base


def _method(raw: dict[str, Any], where: str) -> MethodSpec:
    """A method from the keys of a YAML, in which a setting is a value or a mapping with its source."""
    values = raw.get("settings") or {}
    if not isinstance(values, dict):
        raise UserError(f"{where}: settings must be a mapping of names to values")
    source = {"source": where} if where.endswith((".yaml", ".yml")) else {}
    settings = {k: v if isinstance(v, dict) and "value" in v else {"value": v, **source} for k, v in values.items()}
    return validated(MethodSpec, {**raw, "settings": settings}, where)


def override(spec: MethodSpec, settings: dict[str, Setting]) -> MethodSpec:
    """The same method with some settings replaced. Raises UserError for a setting that it does not have."""
    for key in settings:
        if key not in spec.settings and not is_own(spec.method):  # its Settings know its keys
            hint = did_you_mean(key, spec.settings) or f"; it has {', '.join(spec.settings)}"
            raise UserError(f"{spec.name} has no setting {key!r}{hint}")
    return spec.model_copy(update={"settings": {**spec.settings, **settings}})


def tasks() -> dict[str, TaskInfo]:
    return _tasks(_folder("tasks") / "index.yaml")


@cache
def _tasks(path: Path) -> dict[str, TaskInfo]:
    raw = read_mapping(path)
    return {name: validated(TaskInfo, entry, f"tasks/index.yaml: {name}") for name, entry in raw.items()}


def task_info(name: str, further: Iterable[str] = ()) -> TaskInfo:
    """What index.yaml says of a task. Raises UserError without an entry; `further` are names to suggest, too."""
    known = tasks()
    if name not in known:
        raise UserError(f"no task {name!r}{did_you_mean(name, [*further, *known])}; `specbench list tasks` shows all")
    return known[name]


def validated(model: type[Spec], values: dict[str, Any], where: str, remedy: str = "") -> Spec:
    """The values as a `model`.

    Args:
        where: the file that they are from, or OPTIONS.
        remedy: what the user can do; it ends the error message.

    Raises:
        UserError: a value does not fit; the line has the file or the option, the key, the value and what it should be.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")  # a misspelt key, not its lack
        line = wrong_value(first, where, _known_keys(model))
        raise UserError(line + f"; {remedy}" * bool(remedy)) from None


def _folder(kind: str) -> Path:
    return SUITES if kind == "suites" else SUITES / kind


def _load(model: type[Spec], kind: str, text: str) -> Spec:
    raw, name = _read(kind, text)
    return validated(model, {**raw, "name": name}, text)


def _read(kind: str, text: str) -> tuple[dict[str, Any], str]:
    """The mapping in a YAML file, of suites/ or the user's, and the file's name without ending."""
    if text.endswith((".yaml", ".yml")):
        return read_mapping(Path(text), text), Path(text).stem
    path, noun = files(kind).get(text), kind.removesuffix("s")
    if path is None and (Path(text).name != text or "\0" in text):  # a path, not a name
        raise UserError(f"{text!r} is not a name of a {noun}; give a name, or a file that ends in .yaml")
    if path is None:
        hint = did_you_mean(text, names(kind))
        more = plugins.more() if kind == "methods" else ""
        raise UserError(f"no {noun} {text!r}{hint}; `specbench list {kind}` shows all, or give a YAML file{more}")
    return read_mapping(path, text), text


def _known_keys(model: type[BaseModel]) -> set[str]:
    """The keys of a model and of the models in it, for suggestions."""
    inner = (TaskLine, MethodLine, SamplingSpec, MemberSpec, Setting)
    return {*model.model_fields, *(name for part in inner for name in part.model_fields)}
