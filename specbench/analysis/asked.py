"""What a run asked its servers: settings of requests that must be alike, and sampling that a request cannot name."""

from collections.abc import Iterator, Sequence
from typing import Any

from specbench.results.stored import StoredRun
from specbench.servers.engines import ENGINES

FIELDS = ("system", "chat_template_kwargs", "extra_body")  # settings of a server that change what it is asked


def unlike(run: StoredRun) -> dict[str, list[str]]:
    """By method, the fields of requests in which it and its baseline differ; methods that agree have no entry."""
    values = {spec.name: {name: spec.values.get(name) or None for name in FIELDS} for spec in run.plan.methods}
    differing: dict[str, list[str]] = {}
    for name, mine in values.items():
        baseline = run.plan.against(name)
        if baseline and (fields := [field for field in FIELDS if mine[field] != values[baseline][field]]):
            differing[name] = fields
    return differing


def lines(runs: Sequence[StoredRun]) -> Iterator[str]:
    """Servers that were asked otherwise than their baselines, and sampling that was left to servers."""
    for run in runs:
        for name, fields in unlike(run).items():
            base, what = run.plan.against(name), ", ".join(fields)
            yield f"{name} and {base} were asked with other {what}: they are not compared"
        yield from _unsent(run)


def _unsent(run: StoredRun) -> Iterator[str]:
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
