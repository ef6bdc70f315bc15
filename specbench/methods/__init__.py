"""The decoding methods by name. Each module has `Settings` and `build(settings, pair, watch) -> Method`."""

import importlib
from types import ModuleType

METHODS = {
    "vanilla": "specbench.methods.vanilla",
    "sps": "specbench.methods.sps",
    "lossy": "specbench.methods.lossy",
    "fly": "specbench.methods.fly",
    "reflective": "specbench.methods.reflective",
    "csd": "specbench.methods.csd",
    "judge": "specbench.methods.judge",
    "swift": "specbench.methods.swift",
    "lookahead": "specbench.methods.lookahead",
}


def module(name: str) -> ModuleType:
    return importlib.import_module(METHODS[name])
