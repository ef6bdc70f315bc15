"""Methods with other settings: what `--set`, `--param` and the lines of a suite make of them."""

import itertools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from specbench.base.errors import UserError
from specbench.base.untrusted import parse_value
from specbench.config.load import load_method, override
from specbench.config.messages import wrong_value
from specbench.config.specs import MOST_VARIANTS, MethodSpec, Setting, SuiteSpec


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
        parsed.setdefault(method, {})[setting] = Setting(value=parse_value(value, f"--set {text!r}"))
    return parsed
