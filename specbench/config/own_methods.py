"""Methods that specbench did not bring: a file of the user's, or an entry point of an installed package.

Here only their names and settings are read. `methods.own` imports them, with permission.
"""

import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from specbench.base.errors import UserError
from specbench.base.untrusted import is_file, read_mapping

GROUP = "specbench.methods"  # of entry points
ENTRY = "entry-point:"  # before the name of one, in `MethodSpec.method`
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def is_own(method: str) -> bool:
    """True if a `MethodSpec.method` is a user's file or an entry point."""
    return method.endswith(".py") or method.startswith(ENTRY)


def implementation(text: str) -> str | None:
    """What `MethodSpec.method` is for FILE.py, NAME=FILE.py or the name of an entry point; None for other texts."""
    if text.endswith(".py"):
        return str(Path(text.rpartition("=")[2]).resolve())
    name = text.removeprefix(ENTRY)
    return f"{ENTRY}{name}" if name != text or name in entries() else None


def entries() -> dict[str, EntryPoint]:
    """The methods of installed packages, by name."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def yaml_of(method: str) -> Path:
    """The file with the description and the settings of an own method, which may be missing."""
    return Path(method).with_suffix(".yaml")


def read(text: str, shipped: list[str]) -> dict[str, Any]:
    """The description of an own method, as a method's YAML holds it, with `name` and `method`.

    A file's description and settings are in the YAML of the same name beside it, if there is one. What it leaves out
    are the defaults of the method's `Settings`.

    Args:
        text: FILE.py, NAME=FILE.py, or the name of an entry point (also with ENTRY before it).
        shipped: the names that are taken.

    Raises:
        UserError: there is no such file, or its name is another method's or no name.
    """
    if not text.endswith(".py"):
        name = text.removeprefix(ENTRY)
        package = entries()[name].dist if name in entries() else None
        made_by = f"of the package {package.name} {package.version}" if package else "of a package"
        return {"name": name, "method": f"{ENTRY}{name}", "description": f"An own method, {made_by}"}
    name, equals, file = text.rpartition("=")
    path = Path(file).resolve()
    name = name if equals else path.stem
    if not NAME.fullmatch(name):
        raise UserError(f"{name!r} is not a name of a method: letters, digits, dots and - _; write NAME={file}")
    if name in shipped:
        raise UserError(f"{file}: a method that specbench brings is called {name}; write OTHER_NAME={file}")
    if not is_file(path):
        raise UserError(f"there is no file {file}; `specbench new method {name}` writes one to begin with")
    beside = yaml_of(str(path))
    raw = read_mapping(beside, str(beside)) if is_file(beside) else {}
    if taken := raw.keys() & {"method", "name"}:
        raise UserError(f"{beside}: leave out {taken.pop()!r}: the file beside it is the method")
    return {"description": f"An own method, {path.name}", **raw, "name": name, "method": str(path)}
