"""The decoding methods by name. Each module has `Settings` and `build(settings, pair, watch) -> Method`."""

import importlib
from types import ModuleType

from specbench.errors import UserError

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
    "pld": "specbench.methods.pld",
    "rest": "specbench.methods.rest",
    "aasd": "specbench.methods.aasd",
    "eagle3": "specbench.methods.eagle3",
    "rsd": "specbench.methods.rsd",
    "mdsd": "specbench.methods.mdsd",
    "vocabtrim": "specbench.methods.vocabtrim",
    "slimspec": "specbench.methods.slimspec",
    "confidence": "specbench.methods.confidence",
    "cumulative": "specbench.methods.cumulative",
    "entropy": "specbench.methods.entropy",
    "heuristic": "specbench.methods.heuristic",
    "specdecpp": "specbench.methods.specdecpp",
    "bandit": "specbench.methods.bandit",
    "oracle": "specbench.methods.oracle",
    "member": "specbench.methods.member",
    "ensemble": "specbench.methods.ensemble",
    "ensemble-parallel": "specbench.methods.ensemble_parallel",
    "cos": "specbench.methods.cos",
    "cos-naive": "specbench.methods.cos_naive",
    "cos-sd": "specbench.methods.cos_sd",
    "cospec": "specbench.methods.cospec",
}


def module(name: str) -> ModuleType:
    """The module of a method. Raises UserError for a name that there is not, as a run's file may hold."""
    if name not in METHODS:
        raise UserError(f"no method {name!r}; `specbench list methods` shows all")
    return importlib.import_module(METHODS[name])
