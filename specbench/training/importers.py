"""Which module imports a released head: `specbench import KIND-head`.

A module has `import_head(checkpoint, pair, out, kind)`, which writes a head file and returns its path. Installed
packages bring more by entry points of the group `specbench.importers`, which are such modules; one whose checkpoints
may be names on the hub has a true `HUB`.
"""

import importlib
from types import ModuleType

from specbench.config import plugins

MODULES = {"specdecpp": "specdecpp.released", "eagle3": "eagle3.released"}
END = "-head"


def names() -> list[str]:
    """What can be imported, as the command has it."""
    brought = (name for name in plugins.entries("importers") if name.endswith(END))
    return [*(f"{kind}{END}" for kind in MODULES), *brought]


def of_hub(name: str) -> bool:
    """Whether a checkpoint for one of `names` may be a name on the hub."""
    return name.removesuffix(END) not in MODULES and getattr(importer(name), "HUB", False)


def importer(name: str) -> ModuleType:
    """The module for one of `names`. Whoever calls it says which packages may run."""
    kind = name.removesuffix(END)
    if kind in MODULES:
        return importlib.import_module(f"{__package__}.{MODULES[kind]}")
    return plugins.entries("importers")[name].load()
