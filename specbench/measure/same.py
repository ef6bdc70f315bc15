"""The check before a run goes on, or is joined or read with models: everything is as its manifest has it."""

import json
from pathlib import Path
from typing import Any

from specbench.base import environment
from specbench.base.console import warn
from specbench.config import UserError
from specbench.engine.models.pair import Pair
from specbench.results import same_models
from specbench.results.stored import StoredRun, runtime_text

# What must be the same when a run goes on, by its key in the manifest, in words.
SAME = {
    "schema": "schema",
    "tokenizer_hash": "vocabulary",
    "prompts_hash": "prompts",
    "prompt_ids": "token ids of the prompts",
    "generation": "stops or limits of texts",
}


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
