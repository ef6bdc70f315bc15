"""What installed packages bring by entry points: methods, commands, runtimes, what trains, imports, analyses or judges.

Only names, and data files next to a module, are read here. `specbench-extras` is this project's own second package: its
methods have their plain names and need no permission. Those of any other package do.
"""

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

Group = Literal["methods", "trainers", "importers", "analyses", "judges", "commands", "runtimes"]
EXTRAS = "specbench-extras"


def entries(group: Group) -> dict[str, EntryPoint]:
    """The entry points of a group, by name; the project's own win over others of their names."""
    return _entries(group, tuple(sys.path))


@cache
def _entries(group: Group, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    named = _installed(path).select(group=f"specbench.{group}")
    found = [entry for entry in named if _is_there(entry.module.partition(".")[0], path)]
    return {entry.name: entry for entry in sorted(found, key=lambda entry: (of_extras(entry), entry.name))}


@cache
def _is_there(package: str, path: tuple[str, ...]) -> bool:
    """False if a package is gone, and only its entry points are left."""
    return find_spec(package) is not None


@cache  # it takes some 10 ms
def _installed(path: tuple[str, ...]) -> Any:
    """All entry points, in what has `select`: its class depends on the version of Python."""
    return entry_points()


def extras(group: Group) -> dict[str, EntryPoint]:
    """Those of the project's own extras."""
    return _extras(group, tuple(sys.path))


@cache  # the name of an entry's package is read from its metadata, again each time
def _extras(group: Group, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    return {name: entry for name, entry in _entries(group, path).items() if of_extras(entry)}


def more() -> str:
    """What a message about an unknown name says where the project's extras are not installed."""
    return "" if extras("methods") else f"; the package {EXTRAS} brings more"


def of_extras(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == EXTRAS


def folder(entry: EntryPoint) -> Path:
    """The folder of an entry point's module, which is not imported; nor is any package that it is in."""
    top, *parts = entry.module.split(".")
    spec = find_spec(top)
    places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    return places[0].joinpath(*parts[:-1]) if places else Path(spec.origin).parent if spec and spec.origin else Path()


def package(entry: EntryPoint) -> str:
    """The package of an entry point and its version, in words."""
    return f"the package {entry.dist.name} {entry.dist.version}" if entry.dist else "a package"


def recipes() -> list[Path]:
    """The folders of the recipes of trainers, the extras' first."""
    found = sorted(entries("trainers").values(), key=lambda entry: not of_extras(entry))
    return list(dict.fromkeys(folder(entry) / "recipes" for entry in found))


def folders() -> list[Path]:
    """The folders of the project's extras, one a paper."""
    return _folders(tuple(sys.path))


@cache
def _folders(path: tuple[str, ...]) -> list[Path]:
    return sorted({folder(entry) for group in get_args(Group) for entry in extras(group).values()})
