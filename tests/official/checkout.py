"""What the programs of this folder share: a file of the authors' checkout as a module, and cases as a list in JSON."""

import importlib.util
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any


def module(checkout: str, file: str) -> ModuleType:
    """A file of a checkout, imported by its path."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, Path(checkout, file))
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def store(case: Callable[[int, Any], dict[str, Any]], official: Any, out: str, count: str) -> None:
    """Write so many cases, one a line."""
    cases: Iterable[dict[str, Any]] = (case(number, official) for number in range(int(count)))
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")
