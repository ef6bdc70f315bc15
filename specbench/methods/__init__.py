"""The decoding methods, a paper a file. A method is a module with `Settings` and `build(settings, pair, watch)`.

A method is a file here, or in a family's folder, and a YAML of the same name in suites/methods/; no list names it.
"""

import importlib
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from specbench import config
from specbench.base.errors import UserError
from specbench.config import MethodSpec, load_method, validated

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """All methods that have settings in suites/methods/."""
    return sorted({load_method(name).method for name in config.names("methods")})


def names_with(function: str) -> list[str]:
    """The methods whose files have a function of this name, such as `lengths` or `output`."""
    return [name for name in names() if hasattr(module(name), function)]


@cache
def module(name: str) -> ModuleType:
    """The module of a method, such as `cos-sd` in cos/cos_sd.py. Raises UserError for an unknown name."""
    stem = name.replace("-", "_")
    if re.fullmatch("[a-z][a-z0-9_]*", stem):
        for path in (FOLDER / f"{stem}.py", *FOLDER.glob(f"*/{stem}.py")):
            if path.is_file():
                parts = path.relative_to(FOLDER).with_suffix("").parts
                method = importlib.import_module(".".join((__name__, *parts)))
                if hasattr(method, "build"):
                    return method
    raise UserError(f"no method {name!r}; `specbench list methods` shows all")


def settings_of(spec: MethodSpec, folder: Path) -> dict[str, Any]:
    """The validated settings of a method of the run in `folder`; those that its version lacked get today's defaults.

    Raises UserError for values that the method could not have run with.
    """
    values = {**load_method(spec.method).values, **spec.values}
    settings = validated(module(spec.method).Settings, values, f"{folder}/manifest.json: {spec.name}")
    return values | settings.model_dump()
