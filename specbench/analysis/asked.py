"""What a run asked its servers: settings of requests that must be alike, and sampling that a request cannot name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specbench.config.specs import SERVER
from specbench.results.stored import StoredRun

FIELDS = ("system", "chat_template_kwargs", "extra_body")  # settings of a server that change what it is asked


def settings(run: StoredRun) -> dict[str, dict[str, Any]]:
    """By method, what its prompts are asked with: fields of requests, and the ways (`api`) in which they may be asked.

    A chat server wraps prompts in its own template, as is done here before decoding if the run says so; completions
    read them as they are.
    """
    here = {"completions", *(["chat"] if run.plan.chat_template else [])}
    return {
        spec.name: {name: spec.values.get(name) or None for name in FIELDS}
        | {"api": {spec.values.get("api")} if spec.method == SERVER else here}
        for spec in run.plan.methods
    }


def unlike(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The names of `settings` in which two methods differ."""
    fields = [name for name in FIELDS if mine[name] != theirs[name]]
    return fields if mine["api"] & theirs["api"] else [*fields, "api"]


def lines(unlike: Mapping[str, tuple[str, Sequence[str]]], runs: Sequence[StoredRun]) -> Iterator[str]:
    """Methods that were asked otherwise than their baselines, and sampling that was left to servers.

    `unlike` has by method its baseline, and the settings in which they differ.
    """
    for name, (base, fields) in unlike.items():
        yield f"{name} and {base} were asked with other {', '.join(fields)}: they are not compared"
    for run in runs:
        yield from _unsent(run)


def _unsent(run: StoredRun) -> Iterator[str]:
    if not run.plan.servers:
        return
    from specbench.servers.engines import ENGINES

    facts = run.manifest.get("servers")
    by_name: dict[str, Any] = facts if isinstance(facts, dict) else {}
    for spec in run.plan.servers:
        told = by_name.get(spec.name)
        engine = ENGINES.get(str(told.get("engine"))) if isinstance(told, dict) else None
        if engine is None:
            continue
        left_out = [name for name in spec.values.get("leave_out") or () if name in (*engine.neutral, "seed")]
        unsent = [*engine.unsent(run.plan.temperature == 0), *left_out]
        if unsent:
            yield f"server {spec.name} was not told {', '.join(unsent)}: its own defaults, or the model's, hold"
        if run.plan.ignore_eos and not engine.ignores_eos:
            yield f"server {spec.name} may not know ignore_eos: its texts may end before the limit"
