"""Get a runtime by its name, or choose the fastest one that works."""

from collections.abc import Callable
from typing import NamedTuple

from transformers import PreTrainedModel

from specbench.config import RUNTIMES, UserError
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.static import STATIC
from specbench.engine.runtimes.types import Runtime, Unsupported

AUTO = "auto"
ANYWHERE = ("eager", "static")  # runtimes that compute where a model is
NAMES = tuple(name for name in RUNTIMES if name != AUTO)


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
    if name == "openvino":
        from specbench.engine.runtimes.openvino import OpenVINO

        return OpenVINO(pair.device)
    raise UserError(f"--runtime {name}: there is no such runtime; choose {', '.join(NAMES)}, or auto in a run")


def fastest(pair: Pair, trial: Callable[[Runtime], None], warn: Callable[[str], None]) -> Choice:
    """The fastest runtime that can run the pair and passes the trial.

    `trial` raises Unsupported if a method needs something that the runtime lacks; `warn` receives a line for each
    runtime that was skipped. The order was measured beforehand (results/README.md), so a repeated run makes the same
    choice.
    """
    names = ("graph", "static") if pair.device.type == "cuda" else ("openvino", "static")
    skipped: list[str] = []
    for name in names:
        try:
            candidate = runtime(name, pair)
            trial(candidate)
        except Unsupported as error:
            warn(f"--runtime auto: not {name}: {error}")
            skipped.append(name)
            continue
        here = "a GPU" if pair.device.type == "cuda" else "a CPU"
        return Choice(candidate, f"fastest on {here}" + (f" but for {', '.join(skipped)}" if skipped else ""))
    return Choice(EAGER, f"{' and '.join(skipped)} cannot run this")


def for_batches(name: str, pair: Pair) -> Choice:
    """A runtime that has batches, by name; `auto` is static, if it runs all models of the pair, else eager.

    Raises:
        UserError: there is no such runtime, or none for batches, or it cannot run a model.
    """
    if name != AUTO:
        Batched(name)
        return Choice(runtime(name, pair), "")
    try:
        return Choice(_runs(STATIC, pair), "the fastest that computes batches")
    except Unsupported as error:
        return Choice(EAGER, str(error))


def _runs(candidate: Runtime, pair: Pair) -> Runtime:
    if pair.draft_device and candidate.name not in ANYWHERE:
        raise Unsupported(
            f"the {candidate.name} runtime has all models on one device, and drafts are on {pair.draft_device}; use "
            f"--runtime {' or '.join(ANYWHERE)}"
        )
    for model in pair.models.values():
        candidate.runner(model)
    return candidate


def derived_runtime(runtime: Runtime, model: PreTrainedModel, checked: bool = True) -> Runtime:
    """The runtime for a model that a method derives itself (fewer layers, adapters, a head): static if possible.

    Exporting or capturing each such model would take longer than it saves. Pass `checked=False` for part of a model
    that was checked before, if it is made while time is measured.
    """
    if runtime is EAGER or (isinstance(runtime, Batched) and runtime.base == EAGER.name):
        return runtime
    try:
        STATIC.lean(model, checked)
    except Unsupported:
        return EAGER
    return runtime if isinstance(runtime, Batched) else STATIC
