"""Pairs, methods and suites: YAML into validated, immutable settings. A wrong name or key is an error that helps."""

import difflib
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specbench.errors import UserError as UserError
from specbench.untrusted import is_file, parse_value, read_mapping

PACKAGE = Path(__file__).parent
# Beside the package in a checkout, inside it when installed from a wheel.
SUITES = next(p for p in (PACKAGE.parent / "suites", PACKAGE / "suites") if p.exists())
OWN_PAIR = "own"
RUNTIMES = ("eager", "static", "graph", "openvino", "auto")  # how forwards are computed; auto is the fastest here
BUNDLED = "bundled:"
MOST_VARIANTS = 1000  # of one method, by the combinations of its settings' values


class Settings(BaseModel):
    """Base of everything that is read from YAML or the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSpec(Settings):
    model: str = Field(description="hub name, folder, or bundled:NAME")
    revision: str = "main"
    dtype: str = "bfloat16"


class MemberSpec(ModelSpec):
    """A model of a collaboration."""

    role: str | None = Field(default=None, description="its name; the target's and the draft's is that of their role")
    gamma: int | None = Field(default=None, ge=1, description="tokens that it proposes at a time (γ)")


class PairSpec(Settings):
    name: str
    description: str
    paper: str = ""
    target: ModelSpec
    draft: ModelSpec | None = None
    members: tuple[MemberSpec, ...] = Field(default=(), description="all that decode together; default: draft, target")

    @property
    def bundled(self) -> bool:
        """Whether all models come with the package; such a pair runs the bundled counterparts of tasks."""
        return all(one.model.startswith(BUNDLED) for one in (self.target, self.draft, *self.members) if one)

    @property
    def models(self) -> dict[str, ModelSpec]:
        """Every model once, by role: target, draft, and the members that are neither."""
        return {**{role: one for role, one in self._pair.items()}, **self.collaboration}

    @property
    def collaboration(self) -> dict[str, ModelSpec]:
        """The models that decode together, by role, in order. Raises UserError if two have one role."""
        if not self.members:
            return {role: self._pair[role] for role in ("draft", "target") if role in self._pair}
        found: dict[str, ModelSpec] = {}
        for at, member in enumerate(self.members):
            told = member.model_dump(include=member.model_fields_set & set(ModelSpec.model_fields))
            alike = (role for role, known in self._pair.items() if told.items() <= known.model_dump().items())
            own = next(alike, None)  # what a member does not tell is as the pair has it
            one = self._pair[own] if own else ModelSpec(**told)
            if own and member.role not in (None, own):
                raise UserError(
                    f"{self.name}: the member {member.role!r} is the pair's {own}, and that is its role; leave it out"
                )
            own = own or member.role or f"member{at + 1}"
            if own in found or self._pair.get(own, one) != one:
                raise UserError(f"{self.name}: two models have the role {own!r}; give each member a role of its own")
            found[own] = one
        return found

    @property
    def _pair(self) -> dict[str, ModelSpec]:
        return {"target": self.target, **({"draft": self.draft} if self.draft else {})}


class Setting(Settings):
    value: Any
    source: str = "user"


class MethodSpec(Settings):
    """`name` labels the rows; `method` is the implementation in methods/."""

    name: str
    description: str = ""
    paper: str = ""
    method: str
    baseline: str = Field(default="vanilla", description="what its speedups are against, where nothing else is asked")
    settings: dict[str, Setting] = {}

    @property
    def values(self) -> dict[str, Any]:
        return {key: setting.value for key, setting in self.settings.items()}

    @property
    def identity(self) -> str:
        """What makes two methods the same, whatever they are called."""
        return json.dumps([self.method, self.values], sort_keys=True)

    @property
    def digest(self) -> str:
        """The identity in 16 hexadecimal digits."""
        return hashlib.sha256(self.identity.encode()).hexdigest()[:16]


class TaskInfo(Settings):
    """What specbench knows of an lm-eval task beside its YAML (suites/tasks/index.yaml)."""

    description: str
    hub: str | None  # None: bundled
    data: str | None
    metric: str = Field(description="the headline figure, as lm-eval's `name,filter`")
    max_new_tokens: int
    counterpart: str | tuple[str, ...] | None = None
    calibration: str | None = Field(default=None, description="the split that calibration may use")
    runs_code: bool = Field(default=False, description="scored by running what models wrote (unsafe_code of its YAML)")

    @property
    def counterparts(self) -> tuple[str, ...]:
        """The bundled tasks that stand in for this one: several where it is a mixture."""
        return (self.counterpart,) if isinstance(self.counterpart, str) else self.counterpart or ()


class TaskLine(Settings):
    task: str
    fewshot: int | None = Field(default=None, ge=0)
    same_shots: bool = Field(default=False, description="the first examples for all documents, not a draw for each")
    max_new_tokens: int | None = Field(default=None, ge=1)


class MethodLine(Settings):
    """A method of a suite with changed settings, or with every combination of some."""

    method: str
    settings: dict[str, Any] = {}
    sweep: dict[str, tuple[Any, ...]] = {}


class SamplingSpec(Settings):
    """How tokens are drawn, of the target and of the draft alike; temperature 0 is greedy."""

    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0, description="0 is off")
    top_p: float = Field(default=1.0, gt=0, le=1, description="1 is off")

    @property
    def name(self) -> str:
        """`greedy`, or temperature, top-k and top-p where they are in use."""
        if self.temperature == 0:
            return "greedy"
        filters = f" top-k={self.top_k}" * (self.top_k > 0) + f" top-p={self.top_p:g}" * (self.top_p < 1)
        return f"T={self.temperature:g}{filters}"


class SuiteSpec(Settings):
    name: str
    description: str
    paper: str = ""
    tasks: tuple[TaskLine, ...] = Field(min_length=1)
    limit: int | None = Field(default=None, ge=1)
    sampling: SamplingSpec = SamplingSpec()
    max_length: int | None = Field(default=None, ge=2, description="tokens of a text in all, those of its prompt too")
    methods: tuple[MethodLine, ...] = Field(default=(), description="what is run where no method is named")


Spec = TypeVar("Spec", bound=BaseModel)


def names(kind: str) -> list[str]:
    """What there is in suites/: kind is `pairs`, `methods` or `suites`."""
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
    """A method by name or YAML file. A file of the user's own names a `method` and changes some of its settings."""
    raw, name = _read("methods", text)
    given = raw.pop("settings", None) or {}
    if not isinstance(given, dict):
        raise UserError(f"{text}: settings must be a mapping of names to values")
    if text.endswith((".yaml", ".yml")) and raw.get("method") not in names("methods"):
        hint = _did_you_mean(str(raw.get("method")), names("methods"))
        raise UserError(f"{text}: no method {raw.get('method')!r}{hint}; `specbench list methods` shows all")
    settings = {k: v if isinstance(v, dict) and "value" in v else {"value": v} for k, v in given.items()}
    spec = _validate(MethodSpec, {**raw, "name": name, "settings": settings}, text)
    if text == spec.method:
        return spec
    return override(load_method(spec.method), spec.settings).model_copy(
        update={key: getattr(spec, key) for key in ("name", "description", "paper", *({"baseline"} & raw.keys()))}
    )


def baseline_of(spec: MethodSpec) -> MethodSpec:
    """What a method's speedups are against by itself: its baseline, with the settings that both have."""
    base = load_method(spec.baseline)
    shared = {k: v for k, v in spec.settings.items() if k in base.settings and v.value != base.settings[k].value}
    return variant(base, shared)


def override(spec: MethodSpec, settings: dict[str, Setting]) -> MethodSpec:
    """The same method with some settings replaced; an unknown one is an error."""
    for key in settings:
        if key not in spec.settings:
            hint = _did_you_mean(key, spec.settings) or f"; it has {', '.join(spec.settings)}"
            raise UserError(f"{spec.name} has no setting {key!r}{hint}")
    return spec.model_copy(update={"settings": {**spec.settings, **settings}})


def variant(spec: MethodSpec, settings: dict[str, Setting]) -> MethodSpec:
    """The same method with other settings, which its name tells: `csd[gamma=4]`."""
    if not settings:
        return spec
    text = ",".join(f"{key}={_named(setting.value)}" for key, setting in settings.items())
    name = f"{spec.name[:-1]},{text}]" if spec.name.endswith("]") else f"{spec.name}[{text}]"
    return override(spec, settings).model_copy(update={"name": name})


def _named(value: Any) -> Any:
    """A value as a method's name tells it: of a path the last part, of a file without its ending."""
    return Path(value).name.removesuffix(".safetensors") if isinstance(value, str) and "/" in value else value


def grid(spec: MethodSpec, axes: Mapping[str, Iterable[Any]]) -> list[MethodSpec]:
    """All combinations of values of some settings as variants of a method. Raises UserError for too many."""
    points = [
        [(key, Setting(value=value, source="swept")) for value in {str(v): v for v in values}.values()]
        for key, values in axes.items()
    ]
    if (count := math.prod(map(len, points))) > MOST_VARIANTS:
        raise UserError(f"{spec.name}: {count} variants, and at most {MOST_VARIANTS} make one run; give fewer values")
    return [variant(spec, dict(point)) for point in itertools.product(*points)]


def parse_params(params: Iterable[str]) -> dict[str, list[Any]]:
    """`KEY=V1,V2,…` texts into values by setting; values are read as YAML."""
    axes: dict[str, list[Any]] = {}
    for text in params:
        key, equals, values = text.partition("=")
        if not (key and equals and values):
            raise UserError(f"--param {text!r}: write KEY=VALUE,VALUE,…, such as --param gamma=2,4,6")
        axes.setdefault(key, []).extend(parse_value(f"[{values}]", f"--param {text!r}", "the values"))
    return axes


def suite_methods(suite: SuiteSpec) -> list[MethodSpec]:
    """The methods that a suite brings, each variant by a name of its own."""
    found = []
    for line in suite.methods:
        spec = load_method(line.method)
        changed = {key: Setting(value=v, source=f"suite {suite.name}") for key, v in line.settings.items()}
        found += grid(variant(spec, changed), line.sweep)
    return found


def parse_assignments(assignments: Iterable[str]) -> dict[str, dict[str, Setting]]:
    """`METHOD.KEY=VALUE` texts into settings per method; values are read as YAML."""
    parsed: dict[str, dict[str, Setting]] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        method, dot, setting = key.partition(".")
        if not (equals and dot):
            raise UserError(f"--set {text!r}: write METHOD.KEY=VALUE, such as --set csd.gamma=4")
        parsed.setdefault(method, {})[setting] = Setting(value=parse_value(value, f"--set {text!r}"))
    return parsed


def tasks() -> dict[str, TaskInfo]:
    return _tasks(_folder("tasks") / "index.yaml")


@cache
def _tasks(path: Path) -> dict[str, TaskInfo]:
    raw = read_mapping(path)
    return {name: _validate(TaskInfo, entry, f"tasks/index.yaml: {name}") for name, entry in raw.items()}


def task_info(name: str) -> TaskInfo:
    known = tasks()
    if name not in known:
        raise UserError(f"no task {name!r}{_did_you_mean(name, known)}; `specbench list tasks` shows all")
    return known[name]


def validated(model: type[Spec], values: dict[str, Any], where: str) -> Spec:
    """Settings of a method as its own class; what does not fit is a one-line error."""
    return _validate(model, values, where)


def _folder(kind: str) -> Path:
    return SUITES if kind == "suites" else SUITES / kind


def _load(model: type[Spec], kind: str, text: str) -> Spec:
    raw, name = _read(kind, text)
    return _validate(model, {**raw, "name": name}, text)


def _read(kind: str, text: str) -> tuple[dict[str, Any], str]:
    """The mapping in a YAML file of suites/ or of the user's own, and its name."""
    own = text.endswith((".yaml", ".yml"))
    path = Path(text) if own else _folder(kind) / f"{text}.yaml"
    if not own and (path.parent != _folder(kind) or "\0" in text):  # names lead nowhere else
        raise UserError(f"{text!r} is no name of a {kind.removesuffix('s')}; give a name, or a file that ends in .yaml")
    if not own and not is_file(path):
        kind_name = kind.removesuffix("s")
        hint = _did_you_mean(text, names(kind))
        raise UserError(f"no {kind_name} {text!r}{hint}; `specbench list {kind}` shows all, or give a YAML file")
    return read_mapping(path, text), path.stem


def _validate(model: type[Spec], raw: dict[str, Any], where: str) -> Spec:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise UserError(f"{where}: unknown key {key!r}{_did_you_mean(key, _known_keys(model))}") from None
        raise UserError(f"{where}: {key}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def _known_keys(model: type[BaseModel]) -> set[str]:
    """Keys of a model and of what it holds, for suggestions."""
    held = (TaskLine, MethodLine, SamplingSpec, MemberSpec, Setting)
    return {*model.model_fields, *(name for one in held for name in one.model_fields)}


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word.rpartition(".")[2], known, n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""
