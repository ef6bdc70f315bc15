"""The manifest of a run: everything that its figures depend on."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from specbench.base import environment
from specbench.base.hashes import short_hash
from specbench.config.generation import unused
from specbench.engine.models.cost import facts
from specbench.engine.models.pair import Pair
from specbench.engine.types import Method
from specbench.methods import code_hashes
from specbench.plan import Plan
from specbench.results import ceilings, records
from specbench.tasks.harness import Request


def manifest(
    plan: Plan,
    pair: Pair,
    requests: Sequence[Request],
    prompts: Sequence[Sequence[int]],
    methods: Mapping[str, Method],
    prefixes: Mapping[str, int],
    why: str = "",
) -> dict[str, Any]:
    """The manifest of a run that begins now.

    Args:
        prompts: the requests' token ids.
        prefixes: by task, the number of tokens that its prompts share and models read once, or keep over all turns.
        why: the reason for the choice of an automatic runtime.
    """
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
        "inputs": {spec.name: code_hashes(spec) | methods[spec.name].inputs() for spec in plan.own},
        "lossless": [spec.name for spec in plan.own if follows_target(methods[spec.name])],
        "rescuing": [spec.name for spec in plan.own if getattr(methods[spec.name], "rescues", False)],
        "prompts_hash": digest([request.prompt_hash for request in requests]),
        "prompt_ids": [digest(list(prompt)) for prompt in prompts],
        "requests": [[r.task, r.doc_id, r.prompt_hash, r.doc_hash] for r in requests],
        "generation": generation,
        "unused_generation": unused(pair.models["target"].generation_config.to_dict(), plan.sampling)
        if pair.models
        else {},
        "prefix_tokens": {task: count for task, count in prefixes.items() if count},
        "headline": {line.task: plan.info(line.task).metric for line in plan.tasks},
        "environment": environment.describe(pair.device, pair.draft_device) | gpu_facts(pair, plan.device),
        "ceilings": ceilings.stored(pair.device, pair.models["target"].dtype)
        if pair.models
        else None,  # of this machine, if measured
        "runtime": {"name": pair.runtime.name, "asked": plan.runtime, "why": why, **pair.runtime.facts()},
    }


def gpu_facts(pair: Pair, device: str) -> dict[str, Any]:
    """Clocks, power and ECC of the GPUs of a pair, for its environment; nothing on a CPU."""
    if pair.device.type != "cuda":
        return {}
    from specbench.measure import gpus

    found = gpus.facts(device)
    return {"gpu": found} if found else {}


def follows_target(method: Method) -> bool:
    """Whether a method's texts follow the target's own law, not a combination's and not only nearly."""
    return method.lossless and method.combination is None


def digest(data: Any) -> str:
    """16 hexadecimal digits of JSON-like data; empty for None."""
    return "" if data is None else short_hash(json.dumps(data))
