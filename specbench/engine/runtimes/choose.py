"""Get a runtime by its name, or choose one that works."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from specbench.base.console import warn
from specbench.config import RUNTIMES, UserError
from specbench.engine.clock import free_memory
from specbench.engine.models.pair import Pair
from specbench.engine.models.room import GIB
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.products import computed_in
from specbench.engine.runtimes.static import STATIC
from specbench.engine.runtimes.types import Runtime, Unsupported, brought, check_batches

AUTO = "auto"
ANYWHERE = ("eager", "static")  # runtimes that compute where a model is
NAMES = tuple(name for name in RUNTIMES if name != AUTO)
REMEDY = "; use --runtime"  # begins what a refusal advises, which `auto` does by itself


class Choice(NamedTuple):
    """A runtime that was chosen, and why."""

    runtime: Runtime
    why: str  # in words; "" if it was requested by name


def runtime(name: str, pair: Pair) -> Runtime:
    """A runtime for the models of a pair. Raises Unsupported if it cannot run them, or not on this machine."""
    candidate = _make(name, pair)
    try:
        _runs(candidate, pair)
    except (ImportError, OSError, TypeError) as error:  # an unsuitable release of its library
        reason = " ".join(str(error).split())[:160]
        raise Unsupported(f"the {name} runtime cannot run here: {reason}; install its library again") from None
    return candidate


def _make(name: str, pair: Pair) -> Runtime:
    if name == "eager":
        return EAGER
    if name == "static":
        return STATIC
    if name == "graph":
        from specbench.engine.runtimes.graph import Graph

        return Graph(pair.device)
    if name in NAMES:
        made: Runtime = brought(name)(pair.device)
        return made
    raise UserError(f"--runtime {name}: there is no such runtime; choose {', '.join(RUNTIMES)}")


def usual(name: str, pair: Pair) -> Choice:
    """A runtime by name, without trying methods; `auto` is static if it runs all models of the pair, else eager.

    Raises Unsupported if the runtime that was named cannot run a model, or not here.
    """
    if name != AUTO:
        return Choice(runtime(name, pair), "")
    try:
        return Choice(_runs(_make("static", pair), pair), "the default")
    except Unsupported as error:
        return Choice(EAGER, _why(error))


def placed(name: str, pair: Pair) -> Pair:
    """The pair at the `usual` runtime of a name; a line says why `auto` is eager."""
    chosen = usual(name, pair)
    if name == AUTO and chosen.runtime is EAGER:
        warn(f"runtime: {EAGER.name}, since {chosen.why}")
    return replace(pair, runtime=chosen.runtime)


def fastest(pair: Pair, trial: Callable[[Runtime], None]) -> Choice:
    """What `auto` is in a run: on a GPU graphs, if they run the pair and pass the trial; else the `usual` one.

    `trial` raises Unsupported if a method needs something that graphs lack; static runs what it reads. OpenVINO is
    faster with small models on a CPU, but its rows depend on the block: it is used where it is named.
    """
    if pair.device.type != "cuda":
        return usual(AUTO, pair)
    try:
        graphs = runtime("graph", pair)
        trial(graphs)
    except Unsupported as error:
        other = usual(AUTO, pair)
        return Choice(other.runtime, f"no graphs, since {_why(error)}" + f"; {other.why}" * (other.runtime is EAGER))
    return Choice(graphs, "fastest on a GPU")


def _why(error: Unsupported) -> str:
    return str(error).partition(REMEDY)[0]


def for_batches(name: str, pair: Pair) -> Choice:
    """A runtime that has batches, by name; `auto` is the `usual` one.

    Raises:
        UserError: there is no such runtime, or none for batches, or it cannot run a model.
    """
    if name != AUTO:
        check_batches(name)
    return usual(name, pair)


def _runs(candidate: Runtime, pair: Pair) -> Runtime:
    if pair.draft_device and candidate.name not in ANYWHERE:
        raise Unsupported(
            f"the {candidate.name} runtime has all models on one device, and drafts are on {pair.draft_device}; use "
            f"--runtime {' or '.join(ANYWHERE)}"
        )
    if candidate is STATIC:
        _room(pair)
    for model in pair.models.values():
        candidate.runner(model)
    return candidate


def _room(pair: Pair) -> None:
    """Raise Unsupported if there is no memory for the weights that static lays out next to the models' own."""
    if not (needed := sum(map(STATIC.more, pair.models.values()))):
        return
    try:
        free = free_memory(torch.device("cpu"))
    except (OSError, StopIteration):  # a system that does not tell
        return
    if needed > free:
        raise Unsupported(
            f"the static runtime lays out {needed / GIB:.1f} GiB of weights next to the models' own, and "
            f"{free / GIB:.1f} GiB are free; use --runtime eager, or free memory"
        )


def slowed(pair: Pair) -> str:
    """The type of a pair's weights in which `eager` computes without instructions of the processor; "" if none is."""
    if pair.runtime is not EAGER:
        return ""
    types = {model.dtype for model in pair.models.values() if model.device.type == "cpu"}
    slow = sorted(
        str(dtype).removeprefix("torch.") for dtype in types if computed_in("cpu", dtype) not in (None, dtype)
    )
    return ", ".join(slow)


def head_runtime(runtime: Runtime, model: PreTrainedModel) -> Runtime:
    """The runtime for a head, which lasts as long as its method: the pair's if it captures, else the derived one."""
    derived = derived_runtime(runtime, model)
    return runtime if runtime.name == "graph" and derived is STATIC else derived


def derived_runtime(runtime: Runtime, model: PreTrainedModel, checked: bool = True) -> Runtime:
    """The runtime for a model that a method derives itself (fewer layers, adapters): static if possible.

    Exporting or capturing each such model would take longer than it saves. Pass `checked=False` for part of a model
    that was checked before, if it is made while time is measured.
    """
    base = getattr(runtime, "base", None)  # of a batch: what it computes with
    if EAGER.name in (runtime.name, base):
        return runtime
    try:
        STATIC.lean(model, checked)
    except Unsupported:
        return EAGER
    return runtime if base else STATIC
