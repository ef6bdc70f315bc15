"""Runtimes by name, and the fastest that there is."""

from collections.abc import Callable
from typing import NamedTuple

from transformers import PreTrainedModel

from specbench.config import RUNTIMES, UserError
from specbench.models import Pair
from specbench.runtimes.eager import EAGER
from specbench.runtimes.static import STATIC
from specbench.runtimes.types import Runtime, Unsupported

AUTO = "auto"
NAMES = tuple(name for name in RUNTIMES if name != AUTO)


class Choice(NamedTuple):
    runtime: Runtime
    why: str  # in words, where it was not asked for by name


def runtime(name: str, pair: Pair) -> Runtime:
    """A runtime for the models of a pair. Raises Unsupported if it cannot run them, or not on this machine."""
    made = _make(name, pair)
    try:
        for model in pair.models.values():
            made.runner(model)
    except (ImportError, OSError, TypeError) as error:  # a release of its library that lacks something
        reason = " ".join(str(error).split())[:160]
        raise Unsupported(f"the {name} runtime cannot run here: {reason}; install its library anew") from None
    return made


def _make(name: str, pair: Pair) -> Runtime:
    if name == "eager":
        return EAGER
    if name == "static":
        return STATIC
    if name == "graph":
        from specbench.runtimes.graph import Graph

        return Graph(pair.device)
    if name == "openvino":
        from specbench.runtimes.openvino import OpenVINO

        return OpenVINO(pair.device)
    raise UserError(f"--runtime {name}: there is no such runtime; choose {', '.join(NAMES)}, or auto in a run")


def fastest(pair: Pair, trial: Callable[[Runtime], None], warn: Callable[[str], None]) -> Choice:
    """The first of the runtimes that are known to be fastest here which can run the pair and passes the trial.

    `trial` raises Unsupported where a method needs what a runtime lacks; `warn` is told of each that was passed over.
    The order goes by what was measured (results/README.md), not by the moment: a run is the same when it is repeated.
    """
    names = ("graph", "static") if pair.device.type == "cuda" else ("openvino", "static")
    passed: list[str] = []
    for name in names:
        try:
            found = runtime(name, pair)
            trial(found)
        except Unsupported as error:
            warn(f"--runtime auto: not {name}: {error}")
            passed.append(name)
            continue
        here = "a GPU" if pair.device.type == "cuda" else "a CPU"
        return Choice(found, f"fastest on {here}" + (f" but for {', '.join(passed)}" if passed else ""))
    return Choice(EAGER, f"{' and '.join(passed)} cannot run this")


def beside(runtime: Runtime, model: PreTrainedModel, checked: bool = True) -> Runtime:
    """For a model that a method makes for itself (fewer layers, adapters, a head): static where it can be read.

    An export or a capture of each would take longer than it saves. Without `checked` the reading is taken for right:
    where the model is part of one that was checked, and is made while time is taken.
    """
    if runtime is EAGER:
        return EAGER
    try:
        STATIC.lean(model, checked)
    except Unsupported:
        return EAGER
    return STATIC
