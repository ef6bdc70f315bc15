"""Methods that specbench did not bring: a file of the user's, or an entry point of an installed package.

Here only their names and settings are read. `methods.own` imports them, with permission.
"""

import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from specbench.base.errors import UserError
from specbench.base.untrusted import is_file, read_mapping
from specbench.config import plugins
from specbench.config.specs import ENTRY

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def implementation(text: str) -> str | None:
    """What `MethodSpec.method` is for FILE.py, NAME=FILE.py or the name of an entry point; None for other texts."""
    if text.endswith(".py"):
        return str(Path(text.rpartition("=")[2]).resolve())
    name = text.removeprefix(ENTRY)
    return f"{ENTRY}{name}" if name != text or name in entries() else None


def entries() -> dict[str, EntryPoint]:
    """The methods of installed packages that are not of this project, by name."""
    return {name: entry for name, entry in plugins.entries("methods").items() if not plugins.of_extras(entry)}


def yaml_of(method: str) -> Path:
    """The file with the description and the settings of an own method, which may be missing."""
    if method.startswith(ENTRY):
        name = method.removeprefix(ENTRY)
        return plugins.folder(entries()[name]) / f"{name}.yaml"
    return Path(method).with_suffix(".yaml")


def read(text: str, shipped: list[str]) -> dict[str, Any]:
    """The description of an own method, as a method's YAML holds it, with `name` and `method`.

    Its description and settings are in the YAML of its name next to its module, if there is one. What it leaves out are
    the defaults of the method's `Settings`.

    Args:
        text: FILE.py, NAME=FILE.py, or the name of an entry point (also with ENTRY before it).
        shipped: the names that are taken.

    Raises:
        UserError: there is no such file, or its name is another method's or no name.
    """
    if not text.endswith(".py"):
        name = text.removeprefix(ENTRY)
        method, entry = f"{ENTRY}{name}", entries().get(name)
        if entry and name in shipped:
            taken = f"specbench has a method {name}; give the entry point another name"
            raise UserError(f"{plugins.package(entry)}: {taken}")
        described = {"description": f"An own method, of {plugins.package(entry) if entry else 'a package'}"}
        return described | (_beside(method) if entry else {}) | {"name": name, "method": method}
    name, equals, file = text.rpartition("=")
    path = Path(file).resolve()
    name = name if equals else path.stem
    if not NAME.fullmatch(name):
        raise UserError(f"{name!r} is not a name of a method: letters, digits, dots and - _; write NAME={file}")
    if name in shipped:
        raise UserError(f"{file}: a method that specbench brings is called {name}; write OTHER_NAME={file}")
    if not is_file(path):
        raise UserError(f"there is no file {file}; `specbench new method {name}` writes one to begin with")
    return {"description": f"An own method, {path.name}", **_beside(str(path)), "name": name, "method": str(path)}


def _beside(method: str) -> dict[str, Any]:
    """What the YAML next to an own method says; nothing if there is none. Raises UserError if it names a method."""
    beside = yaml_of(method)
    raw = read_mapping(beside, str(beside)) if is_file(beside) else {}
    if taken := raw.keys() & {"method", "name"}:
        raise UserError(f"{beside}: leave out {taken.pop()!r}: the file beside it is the method")
    return raw
