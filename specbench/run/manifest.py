"""The manifest of a run: everything that its figures depend on, and the check before a run goes on under it."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.base import environment
from specbench.config import UserError, task_info
from specbench.engine.models.cost import facts
from specbench.engine.models.pair import Pair
from specbench.engine.types import Method
from specbench.plan import Plan
from specbench.results import ceilings, records
from specbench.results.stored import runtime_text, weights_of
from specbench.tasks import code
from specbench.tasks.harness import Request


def manifest(
    plan: Plan,
    pair: Pair,
    requests: Sequence[Request],
    methods: Mapping[str, Method],
    prefixes: Mapping[str, int],
    why: str = "",
) -> dict[str, Any]:
    """The manifest of a run that begins now.

    Args:
        prefixes: by task, the number of tokens that its prompts share and models read once.
        why: the reason for the choice of an automatic runtime.

    Raises:
        UserError: a task runs the programs that models write, and that is not permitted.
    """
    runs_code = code.code_execution(plan)
    generation: dict[str, dict[str, Any]] = {}
    for r in requests:
        bounds = {"max_length": plan.max_length} if plan.max_length else {}
        limits = generation.setdefault(r.task, {"until": r.until, "max_new_tokens": 0} | bounds)
        limits["max_new_tokens"] = max(limits["max_new_tokens"], r.max_new_tokens)
    return {
        "schema": records.VERSION,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "plan": plan.model_dump(mode="json"),
        "models": {role: model | {"forward": facts(pair.models[role])} for role, model in pair.describe().items()},
        "tokenizer_hash": pair.tokenizer_hash,
        "inputs": {name: method.inputs() for name, method in methods.items()},
        "prompts_hash": digest([request.prompt_hash for request in requests]),
        "requests": [[r.task, r.doc_id, r.prompt_hash, r.doc_hash] for r in requests],
        "generation": generation,
        "prefix_tokens": {task: count for task, count in prefixes.items() if count},
        "headline": {line.task: task_info(line.task).metric for line in plan.tasks},
        "environment": environment.describe(pair.device),
        "ceilings": ceilings.load(pair.device, pair.models["target"].dtype),  # of this machine, if measured
        "runtime": {"name": pair.runtime.name, "asked": plan.runtime, "why": why, **pair.runtime.facts()},
        **({"code_execution": runs_code} if runs_code else {}),
    }


def check_same(stored: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Raise UserError if a run would go on with another machine, other weights or other documents."""
    keys = ["schema", "tokenizer_hash", "inputs", "prompts_hash"]
    differing = [key for key in keys if stored[key] != now[key]]
    if weights_of(stored) != weights_of(now):
        differing.append("models")
    differing += [key for key in environment.MUST_AGREE if stored["environment"][key] != now["environment"][key]]
    if runtime_text(stored) != runtime_text(now):
        differing.append("runtime")
    if stored.get("prefix_tokens", {}) != now["prefix_tokens"]:
        differing.append("shared prefixes")
    if differing:
        raise UserError(f"{folder} began with other {', '.join(differing)}; start a new run instead of --resume")


def digest(data: Any) -> str:
    """16 hexadecimal digits of JSON-like data; empty for None."""
    return "" if data is None else hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]
