"""The manifest of a run: everything that its figures depend on, and the check before a run goes on under it."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.base import environment
from specbench.base.console import warn
from specbench.base.hashes import short_hash
from specbench.config import UserError
from specbench.config.generation import unused
from specbench.engine.models.cost import facts
from specbench.engine.models.pair import Pair
from specbench.engine.types import Method
from specbench.measure import gpus
from specbench.methods import code_hashes
from specbench.plan import Plan
from specbench.results import ceilings, records, same_models
from specbench.results.stored import StoredRun, runtime_text
from specbench.tasks.harness import Request

# What must be the same when a run goes on, by its key in the manifest, in words.
SAME = {
    "schema": "schema",
    "tokenizer_hash": "vocabulary",
    "prompts_hash": "prompts",
    "prompt_ids": "token ids of the prompts",
    "generation": "stops or limits of texts",
}


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
    found = gpus.facts(device) if pair.device.type == "cuda" else []
    return {"gpu": found} if found else {}


def follows_target(method: Method) -> bool:
    """Whether a method's texts follow the target's own law, not a combination's and not only nearly."""
    return method.lossless and method.combination is None


def check_same(
    stored: dict[str, Any], now: dict[str, Any], folder: Path, remedy: str = "start a new run instead of --resume"
) -> None:
    """Check that a run may go on: with the same models, documents, inputs, machine and runtime.

    What a run of an earlier version does not tell cannot be checked; a line says so.

    Raises:
        UserError: something differs; the line names all that does.
    """
    now = json.loads(json.dumps(now))  # tuples become lists, as in what was stored
    differing = differences(stored, now) + other_machine(stored, now)
    if differing:
        raise UserError(f"{folder} began with different {', '.join(differing)}; {remedy}")
    if untold := same_models.untold(stored) + ["token ids of the prompts"] * ("prompt_ids" not in stored):
        what = ", ".join(untold)
        warn(f"{folder} was written by an earlier version: whether it began with the same {what} cannot be checked")


def differences(stored: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """In words, what differs between two manifests that must lead to the same texts, rounds and counts."""
    differing = same_models.differences(stored, now)
    differing += [name for key, name in SAME.items() if key in stored and stored[key] != now.get(key)]
    if not all(same_models.same_inputs(stored["inputs"].get(name, {}), own) for name, own in now["inputs"].items()):
        differing.append("inputs")
    if runtime_text(stored) != runtime_text(now):
        differing.append("runtime")
    if stored.get("prefix_tokens", {}) != now.get("prefix_tokens", {}):
        differing.append("shared prefixes")
    return differing


def other_machine(stored: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between the machines of two manifests, of the facts that times depend on."""
    here, there = stored["environment"], now["environment"]
    return [key for key in (*environment.MUST_AGREE, "draft_device") if here.get(key) != there.get(key)]


def check_models(run: StoredRun, pair: Pair) -> None:
    """Raise UserError if the models of a pair are not those that a run was decoded with."""
    now = {"models": pair.describe(), "environment": {"versions": environment.versions()}}
    if differing := same_models.differences(run.manifest, now):
        raise UserError(
            f"{run.folder} was decoded with different models than {pair.name} has now ({', '.join(differing)} differ); "
            "put the old ones back, or run it again"
        )


def digest(data: Any) -> str:
    """16 hexadecimal digits of JSON-like data; empty for None."""
    return "" if data is None else short_hash(json.dumps(data))
