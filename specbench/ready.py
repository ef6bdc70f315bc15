"""From a plan to models at a runtime, and to methods that are built and have begun once."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from specbench import files, permissions
from specbench.config import MethodSpec, UserError, validated
from specbench.console import console
from specbench.decoding.session import Unwatched
from specbench.decoding.types import Method, Sampling, Watch
from specbench.methods import module
from specbench.models import Pair, load_pair
from specbench.plan import Plan
from specbench.runtimes import choose
from specbench.runtimes.choose import AUTO
from specbench.runtimes.types import Runtime, Unsupported
from specbench.stored import StoredRun, runtime_of
from specbench.untrusted import read_json

TRIAL_ROOM = 256  # positions that drafts of a trial may take
READY_ROUNDS = 3  # of each method, when a task begins


def load_models(plan: Plan, runtime: str | None = None) -> Pair:
    """The plan's pair, at a runtime by name, else the plan's unless that is to be found out.

    Raises UserError for a plan that lets models run code, which this command line does not.
    """
    permissions.check_loading(plan)
    pair = load_pair(plan.pair, plan.device, plan.dtype, plan.trust_remote_code, plan.allow_pickle)
    name = runtime or plan.runtime
    return pair if name == AUTO else replace(pair, runtime=choose.runtime(name, pair))


def load_models_of(run: StoredRun) -> Pair:
    """The pair of a run, at the runtime that it ran on."""
    return load_models(run.plan, runtime_of(run.manifest))


def build(spec: MethodSpec, pair: Pair, watch: Watch) -> Method:
    implementation = module(spec.method)
    settings = validated(implementation.Settings, spec.values, spec.name)
    return implementation.build(settings, pair, watch)


def at_runtime(plan: Plan, pair: Pair, prompt: list[int], length: int, name: str) -> tuple[Pair, str]:
    """The pair at a runtime by name, and why it was chosen; `auto` is the fastest that runs all methods of the plan.

    They are tried at a text of `length` tokens, or of what the pair's context has room for, that repeats the prompt.
    """
    if name != AUTO:
        return (pair if pair.runtime.name == name else replace(pair, runtime=choose.runtime(name, pair))), ""

    text = list(itertools.islice(itertools.cycle(prompt), max(1, min(length, pair.context - TRIAL_ROOM))))

    def trial(candidate: Runtime) -> None:
        for spec in plan.methods:
            with suppress_failures():
                start(spec, replace(pair, runtime=candidate), text, Sampling(plan.temperature))

    found, why = choose.fastest(pair, trial, warn)
    console.print(f"runtime: {found.name} ({why})", style="dim", highlight=False)
    return replace(pair, runtime=found), why


def start(spec: MethodSpec, pair: Pair, prompt: list[int], sampling: Sampling = Sampling()) -> None:  # noqa: B008
    """Build a method and let it decode its first rounds, for nothing but whether it can."""
    begin(build(spec, pair, Unwatched()), prompt, sampling, pair)


def begin(method: Method, prompt: list[int], sampling: Sampling, pair: Pair) -> None:
    """The first rounds of a text, for nothing but what they make ready."""
    for _ in itertools.islice(method.rounds(prompt, sampling, torch.Generator(pair.device)), READY_ROUNDS):
        pass


@contextmanager
def suppress_failures() -> Iterator[None]:
    """Let pass what a method or a model raises, which its samples will tell; not what a runtime cannot run."""
    try:
        yield
    except Unsupported:
        raise
    except Exception:
        pass


def warn(line: str) -> None:
    console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)


def apart(pair: Pair) -> dict[str, float]:
    """Seconds that were spent apart from decoding: on exports, compilations, captures and shared prefixes."""
    return {**pair.runtime.seconds, "prefix": pair.prefixes.seconds}


def note_apart(folder: Path, pair: Pair, before: dict[str, float]) -> None:
    """Add to the run's `apart.json` what was spent since `before`."""
    path = folder / "apart.json"
    try:
        stored = read_json(path) if path.exists() else {}
    except UserError:  # seconds that were spent, and no more
        stored = {}
    known = (
        {key: value for key, value in stored.items() if isinstance(value, float)} if isinstance(stored, dict) else {}
    )
    spent = {what: known.get(what, 0.0) + seconds - before.get(what, 0.0) for what, seconds in apart(pair).items()}
    files.write_json(path, known | spent)
