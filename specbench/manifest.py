"""The manifest of a run: all that its figures depend on, and whether a run may go on under it."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench import ceilings, environment, permissions, records
from specbench.config import UserError, task_info
from specbench.decoding.types import Method
from specbench.harness import Request
from specbench.models import Pair
from specbench.plan import Plan
from specbench.roofline import facts
from specbench.stored import runtime_told, weights_of


def manifest(
    plan: Plan,
    pair: Pair,
    requests: Sequence[Request],
    methods: Mapping[str, Method],
    prefixes: Mapping[str, int],
    why: str = "",
) -> dict[str, Any]:
    """`prefixes` are tokens that a task's prompts share and models read once; `why` an automatic runtime was chosen.

    Raises UserError for a plan whose tasks run what models write, without permission.
    """
    runs_code = permissions.code_execution(plan)
    generation: dict[str, dict[str, Any]] = {}
    for r in requests:
        bounds = {"max_length": plan.max_length} if plan.max_length else {}
        told = generation.setdefault(r.task, {"until": r.until, "max_new_tokens": 0} | bounds)
        told["max_new_tokens"] = max(told["max_new_tokens"], r.max_new_tokens)
    return {
        "schema": records.VERSION,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "plan": plan.model_dump(mode="json"),
        "models": {role: told | {"forward": facts(pair.models[role])} for role, told in pair.describe().items()},
        "tokenizer_hash": pair.tokenizer_hash,
        "inputs": {name: method.inputs() for name, method in methods.items()},
        "prompts_hash": digest([request.prompt_hash for request in requests]),
        "requests": [[r.task, r.doc_id, r.prompt_hash, r.doc_hash] for r in requests],
        "generation": generation,
        "prefix_tokens": {task: count for task, count in prefixes.items() if count},
        "headline": {line.task: task_info(line.task).metric for line in plan.tasks},
        "environment": environment.describe(pair.device),
        "ceilings": ceilings.known(pair.device, pair.models["target"].dtype),  # of this machine, if they were measured
        "runtime": {"name": pair.runtime.name, "asked": plan.runtime, "why": why, **pair.runtime.facts()},
        **({"code_execution": runs_code} if runs_code else {}),
    }


def check_same(stored: dict[str, Any], found: dict[str, Any], folder: Path) -> None:
    """Refuse to go on with a run on another machine, other weights or other documents."""
    same = ["schema", "tokenizer_hash", "inputs", "prompts_hash"]
    differing = [key for key in same if stored[key] != found[key]]
    if weights_of(stored) != weights_of(found):
        differing.append("models")
    machine = environment.MUST_AGREE
    differing += [key for key in machine if stored["environment"][key] != found["environment"][key]]
    if runtime_told(stored) != runtime_told(found):
        differing.append("runtime")
    if stored.get("prefix_tokens", {}) != found["prefix_tokens"]:
        differing.append("shared prefixes")
    if differing:
        raise UserError(f"{folder} was begun with other {', '.join(differing)}; start a new run instead of --resume")


def digest(data: Any) -> str:
    """16 hexadecimal digits of JSON-like data; empty for None."""
    return "" if data is None else hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]
