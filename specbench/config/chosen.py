"""The methods that a command line chooses: their settings, variants, and the baselines that join them."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from specbench.base.errors import UserError, wrong_value
from specbench.base.untrusted import parse_value
from specbench.config.load import load_method, override
from specbench.config.specs import MOST_VARIANTS, SERVER, MethodSpec, Setting, SuiteSpec

VANILLA = "vanilla"  # the server that other servers' speedups are against
EACH = "each"  # the baseline of every method is its own

Specs = dict[str, MethodSpec]  # by name


def by_name(methods: Sequence[MethodSpec]) -> Specs:
    """Each method once. Raises UserError if two different ones share a name."""
    specs: Specs = {}
    for spec in methods:
        if specs.get(spec.name, spec) != spec:
            raise UserError(f"two different methods are called {spec.name}; rename the file of one")
        specs[spec.name] = spec
    return specs


def assigned(specs: Specs, assignments: Sequence[str]) -> Specs:
    """The methods with the settings that `--set METHOD.KEY=VALUE` changes, in all variants of METHOD."""
    specs = dict(specs)
    for method, settings in parse_assignments(assignments).items():
        variants = [name for name in specs if name == method or name.startswith(f"{method}[")]
        if not variants:
            raise UserError(f"--set {method}.…: this run has no method {method!r}; it has {', '.join(specs)}")
        for name in variants:  # a setting that a variant is named after stays
            changes = {key: value for key, value in settings.items() if f"{key}=" not in name}
            specs[name] = override(specs[name], changes)
    return specs


def swept(specs: Specs, params: Sequence[str], common: MethodSpec | None, baseline: str | None) -> Specs:
    """The common baseline as it is, and every other method as its variants."""
    kept = [spec for spec in specs.values() if spec == common]
    others = [spec for spec in specs.values() if spec != common]
    if not others or (baseline == EACH and not any(spec.settings for spec in others)):
        raise UserError(f"{[*kept, *others][0].name} is the baseline and is not swept; choose another --method")
    axes = parse_params(params)
    variants = [variant for spec in others for variant in grid(spec, axes)]
    return {spec.name: spec for spec in [*kept, *variants]}


def with_baselines(specs: Specs) -> tuple[Specs, dict[str, str]]:
    """The methods after the baselines that they need, each once, and the name of everyone's baseline.

    A method that shares no setting with its baseline takes the baseline's variant that the other methods have, if they
    all have the same one.
    """
    by_identity = {spec.identity: spec for spec in specs.values()}
    bases = {name: baseline_of(spec) for name, spec in specs.items() if spec.method != SERVER}
    bases = {name: by_identity.get(base.identity, base) for name, base in bases.items()}
    sharing_none = [
        name for name, spec in specs.items() if name in bases and not spec.settings.keys() & bases[name].settings.keys()
    ]
    for name in sharing_none:
        others = [*specs.values(), *(base for other, base in bases.items() if other not in sharing_none)]
        variants = {spec.identity: spec for spec in others if spec.method == bases[name].method}
        if len(variants) == 1:
            (bases[name],) = variants.values()
    for name, base in bases.items():
        same = specs.get(base.name)
        if same and same.method == SERVER:
            raise UserError(f"{name} needs {base.name} decoding here as its baseline; give the server another name")
        if same and same.identity != base.identity:
            raise UserError(
                f"{name} needs {base.name} with its own settings as the baseline, and this run has another "
                f"{base.name}; give both the same settings, or --baseline {base.name}"
            )
    methods = {spec.name: spec for spec in [*bases.values(), *specs.values()]}
    return methods, {name: bases[name].name if name in bases else name for name in methods}


def of_servers(specs: Specs) -> dict[str, str]:
    """Each server's baseline: the server called vanilla, else vanilla decoding here, else itself."""
    plain = [name for name, spec in specs.items() if VANILLA in (spec.method, spec.method == SERVER and name)]
    plain.sort(key=lambda name: specs[name].method != SERVER)
    return {name: (plain or [name])[0] for name, spec in specs.items() if spec.method == SERVER}


def baseline_of(spec: MethodSpec) -> MethodSpec:
    """The method that a method's speedups are against: its `baseline`, with the settings that both have."""
    base = load_method(spec.baseline)
    shared = {k: v for k, v in spec.settings.items() if k in base.settings and v.value != base.settings[k].value}
    return variant(base, shared)


def variant(spec: MethodSpec, settings: dict[str, Setting]) -> MethodSpec:
    """The same method with other settings, which are part of its name: `csd[gamma=4]`."""
    if not settings:
        return spec
    text = ",".join(f"{key}={_named(setting.value)}" for key, setting in settings.items())
    name = f"{spec.name[:-1]},{text}]" if spec.name.endswith("]") else f"{spec.name}[{text}]"
    return override(spec, settings).model_copy(update={"name": name})


def _named(value: Any) -> Any:
    """A value as it stands in a method's name: of a path, the last part without `.safetensors`."""
    return Path(value).name.removesuffix(".safetensors") if isinstance(value, str) and "/" in value else value


def grid(spec: MethodSpec, axes: Mapping[str, Iterable[Any]]) -> list[MethodSpec]:
    """A method's variants, one for each combination of values; `axes` are values by setting.

    Raises:
        UserError: there are more than MOST_VARIANTS.
    """
    points = [
        [(key, Setting(value=value, source="swept")) for value in {str(v): v for v in values}.values()]
        for key, values in axes.items()
    ]
    if (count := math.prod(map(len, points))) > MOST_VARIANTS:
        raise UserError(f"{spec.name}: {count} variants, and at most {MOST_VARIANTS} make one run; give fewer values")
    return [variant(spec, dict(point)) for point in itertools.product(*points)]


def suite_methods(suite: SuiteSpec) -> list[MethodSpec]:
    """The methods that a suite brings, each variant under its own name.

    Raises:
        UserError: there are more than MOST_VARIANTS.
    """
    methods: list[MethodSpec] = []
    for line in suite.methods:
        changes = {key: Setting(value=v, source=f"suite {suite.name}") for key, v in line.settings.items()}
        methods += grid(variant(load_method(line.method), changes), line.sweep)
        if len(methods) > MOST_VARIANTS:
            raise UserError(f"the suite {suite.name} brings over {MOST_VARIANTS} methods; split it into several suites")
    return methods


def check_settings(model: type[BaseModel], spec: MethodSpec) -> None:
    """Check the settings of a method. Raises UserError with the option or the file that a wrong one is from."""
    try:
        model.model_validate(spec.values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        source = spec.settings[key].source if key in spec.settings else "user"
        options = {
            "user": f"--set {spec.name}.{key or 'KEY'}=…",
            "swept": f"--param {key}=…",
        }
        line = wrong_value(first, f"method {spec.name}", model.model_fields)
        raise UserError(f"{line}; it is from {options.get(source, source)}") from None


def parse_params(params: Iterable[str]) -> dict[str, list[Any]]:
    """The values by setting of `KEY=V1,V2,…` texts; values are YAML."""
    axes: dict[str, list[Any]] = {}
    for text in params:
        key, equals, values = text.partition("=")
        if not (key and equals and values):
            raise UserError(f"--param {text!r}: write KEY=VALUE,VALUE,…, such as --param gamma=2,4,6")
        axes.setdefault(key, []).extend(parse_value(f"[{values}]", f"--param {text!r}", "the values"))
    return axes


def parse_assignments(assignments: Iterable[str]) -> dict[str, dict[str, Setting]]:
    """The settings by method of `METHOD.KEY=VALUE` texts; values are YAML."""
    parsed: dict[str, dict[str, Setting]] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        method, dot, setting = key.partition(".")
        if not (equals and dot):
            raise UserError(f"--set {text!r}: write METHOD.KEY=VALUE, such as --set csd.gamma=4")
        if setting in parsed.get(method, {}):
            raise UserError(f"--set {key} is there twice; leave one of them")
        parsed.setdefault(method, {})[setting] = Setting(value=parse_value(value, f"--set {text!r}"))
    return parsed
