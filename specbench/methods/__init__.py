"""The decoding methods, each in a file of its own in the folder of its family, and what several families share.

A method is a module with `Settings` and `build(settings, pair, watch)`: a file in any folder here, and a YAML of the
same name in suites/methods/, or both in a folder of the extras, found by an entry point. No list names it.
"""

import importlib
import re
from collections.abc import Mapping
from functools import cache
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from typing import Any

from specbench import config
from specbench.base.errors import UserError
from specbench.config import MethodSpec, Setting, load_method, plugins, validated
from specbench.config.specs import is_own
from specbench.plan import Plan

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """All methods that have settings in suites/methods/."""
    return sorted({load_method(name).method for name in config.names("methods")})


def names_with(function: str) -> list[str]:
    """The methods whose files have a function of this name, such as `lengths` or `output`."""
    return [name for name in names() if hasattr(module(name), function)]


def module(name: str) -> ModuleType:
    """The module of a method, such as `eagle3-typical` in heads/eagle3_typical.py, or one that specbench did not bring.

    Raises:
        UserError: no method has the name, or it is an own one that must not or cannot be imported.
    """
    if not is_own(name):
        return _shipped(name)
    from specbench.methods import own

    return own.module(name)


def code_hashes(spec: MethodSpec) -> dict[str, str]:
    """The hash of an own method's file, for the manifest; nothing for a method of specbench."""
    if not is_own(spec.method):
        return {}
    from specbench.methods import own

    return {"code": own.digest(spec.method)}


def check_unchanged(spec: MethodSpec, recorded: Mapping[str, str]) -> None:
    """Check, before it is imported, that an own method's file is the one of a run; `recorded` are the run's hashes.

    Raises:
        UserError: it has changed, or is gone.
    """
    if any(recorded.get(name, value) != value for name, value in code_hashes(spec).items()):
        raise UserError(f"{spec.method} has changed since the run began; put the old file back, or start a new run")


def stem_of(name: str) -> str:
    """The name of the file of a method, such as k_by_batch; that of a keyword ends with an underscore."""
    return name.replace("-", "_") + "_" * iskeyword(name)


@cache
def _shipped(name: str) -> ModuleType:
    stem = stem_of(name)
    if re.fullmatch("[a-z][a-z0-9_]*", stem):
        for path in FOLDER.rglob(f"{stem}.py"):
            parts = path.relative_to(FOLDER).with_suffix("").parts
            method = importlib.import_module(".".join((__name__, *parts)))
            if hasattr(method, "build"):
                return method
    if entry := plugins.extras("methods").get(name):
        return entry.load()
    raise UserError(f"no method {name!r}; `specbench list methods` shows all")


def settings_of(spec: MethodSpec, folder: Path) -> dict[str, Any]:
    """The validated settings of a method of the run in `folder`; those that its version lacked get today's defaults.

    Raises UserError for values that the method could not have run with.
    """
    if is_own(spec.method):  # its code is not needed to read a run, which has all its settings
        return spec.values
    values = {**load_method(spec.method).values, **spec.values}
    settings = validated(module(spec.method).Settings, values, f"{folder}/manifest.json: {spec.name}")
    return values | settings.model_dump()


def with_defaults(plan: Plan) -> Plan:
    """The plan with all settings of own methods: those that it does not have get the defaults of their `Settings`.

    Raises:
        UserError: an own method must not or cannot be imported, or has no such setting or value.
    """
    return plan.model_copy(update={"methods": tuple(map(_with_defaults, plan.methods))})


def _with_defaults(spec: MethodSpec) -> MethodSpec:
    if not is_own(spec.method):
        return spec
    from specbench.config.own_methods import yaml_of

    beside = yaml_of(spec.method)
    remedy = "" if beside.is_file() else f"there is no {beside.name} next to its module that could give it"
    values = validated(module(spec.method).Settings, spec.values, spec.name, remedy).model_dump(mode="json")
    added = {key: Setting(value=value, source="default") for key, value in values.items() if key not in spec.settings}
    return spec.model_copy(update={"settings": {**spec.settings, **added}})
