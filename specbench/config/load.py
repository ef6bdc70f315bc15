"""Pairs, methods, suites and tasks by name or file. A wrong name or key is an error that helps."""

from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from specbench.base.errors import UserError, did_you_mean
from specbench.base.untrusted import is_file, read_mapping
from specbench.config import own_methods
from specbench.config.messages import wrong_value
from specbench.config.specs import (
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
)

PACKAGE = Path(__file__).parent.parent
# Beside the package in a checkout, inside it when installed from a wheel.
SUITES = next(p for p in (PACKAGE.parent / "suites", PACKAGE / "suites") if p.exists())
OWN_PAIR = "own"
Spec = TypeVar("Spec", bound=BaseModel)


def names(kind: str) -> list[str]:
    """The names in suites/; kind is `pairs`, `methods` or `suites`."""
    return sorted(path.stem for path in _folder(kind).glob("*.yaml"))


def load_pair(text: str) -> PairSpec:
    """A pair by name, by YAML file, or as `target=NAME_OR_PATH,draft=NAME_OR_PATH`."""
    if "=" not in text:
        return _load(PairSpec, "pairs", text)
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    if unknown := set(parts) - {"target", "draft"}:
        raise UserError(f"--pair has no {unknown.pop()!r}; write target=NAME_OR_PATH,draft=NAME_OR_PATH")
    if not parts.get("target") or parts.get("draft") == "":
        raise UserError("--pair needs a target: target=NAME_OR_PATH,draft=NAME_OR_PATH")
    models = {role: ModelSpec(model=name, dtype="auto") for role, name in parts.items()}
    return PairSpec(name=OWN_PAIR, description=text, target=models["target"], draft=models.get("draft"))


def load_suite(text: str) -> SuiteSpec:
    suite = _load(SuiteSpec, "suites", text)
    for line in suite.tasks:
        task_info(line.task)
    return suite


def load_method(text: str) -> MethodSpec:
    """A method by name, YAML file or FILE.py. A variant names a `method` and changes some of its settings."""
    shipped = names("methods")
    own = text not in shipped and own_methods.implementation(text)
    if own:
        raw = own_methods.read(text, shipped)
        name = raw["name"]
    else:
        raw, name = _read("methods", text)
    base = str(raw.get("method"))
    if not own and text.endswith((".yaml", ".yml")) and base.endswith(".py"):
        base = raw["method"] = str((Path(text).parent / base).resolve())  # beside the YAML that names it
    values = raw.pop("settings", None) or {}
    if not isinstance(values, dict):
        raise UserError(f"{text}: settings must be a mapping of names to values")
    if text.endswith((".yaml", ".yml")) and base not in shipped and not own_methods.implementation(base):
        raise UserError(f"{text}: no method {base!r}{did_you_mean(base, shipped)}; `specbench list methods` shows all")
    settings = {k: v if isinstance(v, dict) and "value" in v else {"value": v} for k, v in values.items()}
    spec = validated(MethodSpec, {**raw, "name": name, "settings": settings}, text)
    if own or text == spec.method:
        return spec
    return override(load_method(spec.method), spec.settings).model_copy(
        update={key: getattr(spec, key) for key in ("name", "description", "paper", *({"baseline"} & raw.keys()))}
    )


def override(spec: MethodSpec, settings: dict[str, Setting]) -> MethodSpec:
    """The same method with some settings replaced. Raises UserError for a setting that it does not have."""
    for key in settings:
        if key not in spec.settings and not own_methods.is_own(spec.method):  # its Settings know its keys
            hint = did_you_mean(key, spec.settings) or f"; it has {', '.join(spec.settings)}"
            raise UserError(f"{spec.name} has no setting {key!r}{hint}")
    return spec.model_copy(update={"settings": {**spec.settings, **settings}})


def tasks() -> dict[str, TaskInfo]:
    return _tasks(_folder("tasks") / "index.yaml")


@cache
def _tasks(path: Path) -> dict[str, TaskInfo]:
    raw = read_mapping(path)
    return {name: validated(TaskInfo, entry, f"tasks/index.yaml: {name}") for name, entry in raw.items()}


def task_info(name: str) -> TaskInfo:
    known = tasks()
    if name not in known:
        raise UserError(f"no task {name!r}{did_you_mean(name, known)}; `specbench list tasks` shows all")
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
        line = wrong_value(error.errors()[0], where, _known_keys(model))
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
    path, noun = _folder(kind) / f"{text}.yaml", kind.removesuffix("s")
    if path.parent != _folder(kind) or "\0" in text:  # a name must not lead to another folder
        raise UserError(f"{text!r} is no name of a {noun}; give a name, or a file that ends in .yaml")
    if not is_file(path):
        hint = did_you_mean(text, names(kind))
        raise UserError(f"no {noun} {text!r}{hint}; `specbench list {kind}` shows all, or give a YAML file")
    return read_mapping(path, text), text


def _known_keys(model: type[BaseModel]) -> set[str]:
    """The keys of a model and of the models in it, for suggestions."""
    inner = (TaskLine, MethodLine, SamplingSpec, MemberSpec, Setting)
    return {*model.model_fields, *(name for part in inner for name in part.model_fields)}
