"""Do two manifests tell of the same models? What they are counts, not what they are called or where they lie."""

from collections.abc import Mapping
from typing import Any

# What a manifest tells of a model, in words. Runs of earlier versions do not tell what is in LATER; those are hashes of
# what transformers makes of a model's files, so they compare between runs of the same versions of READERS only.
CONTENT = {
    "architecture": "architecture",
    "parameters": "number of parameters",
    "dtype": "dtype",
    "attention": "attention",
    "file_sha256": "GGUF file",
    "quantization": "quantisation of the GGUF file",
    "weights_hash": "weights",
    "tokenizer_hash": "vocabulary",
    "shared_tokens": "tokens shared with the target",
    "config_hash": "configuration",
    "generation_hash": "settings of generation",
    "tokenizer_state": "tokenizer",
}
LATER = ("config_hash", "generation_hash", "tokenizer_state")
READERS = ("transformers", "tokenizers")
LATER_INPUTS = ("backbone",)  # of methods


def models_of(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a manifest tells of each model, by role; nothing for an imported run."""
    return manifest["models"] or {}


def differences(manifest: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """In words, what differs between the models of two manifests, as far as both tell it: `weights of the draft`."""
    mine, theirs = models_of(manifest), models_of(other)
    content = [key for key in CONTENT if key not in LATER or _readers(manifest) == _readers(other)]
    differing = [f"{role} model" for role in {**mine, **theirs} if (role in mine) != (role in theirs)]
    for role in (role for role in mine if role in theirs):
        left, right = mine[role], theirs[role]
        recorded = [key for key in content if None not in (left.get(key), right.get(key))]
        if "weights_hash" not in recorded and left.get("model") != right.get("model"):
            differing.append(f"{role} model")
        differing += [f"{CONTENT[key]} of the {role}" for key in recorded if left[key] != right[key]]
    return differing


def same_tokenizer(manifest: Mapping[str, Any], state: str | None, versions: Mapping[str, str]) -> bool:
    """True unless a manifest tells that the target's tokenizer had another `state`, by the same `versions`."""
    recorded = models_of(manifest)["target"].get("tokenizer_state")
    comparable = _readers(manifest) == _readers({"environment": {"versions": versions}})
    return not comparable or None in (recorded, state) or recorded == state


def untold(manifest: Mapping[str, Any]) -> list[str]:
    """In words, what a manifest of an earlier version does not tell of its models: `tokenizer of the target`."""
    recorded = {role: model for role, model in models_of(manifest).items() if model.get("weights_hash")}
    lacking = [(role, key) for role, model in recorded.items() for key in LATER if model.get(key) is None]
    return [f"{CONTENT[key]} of the {role}" for role, key in lacking]


def same_inputs(recorded: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """True if the files that a method reads have the hashes that were recorded; earlier versions recorded fewer."""
    later = {name: value for name, value in now.items() if name in LATER_INPUTS}
    return {**later, **recorded} == now


def _readers(manifest: Mapping[str, Any]) -> list[str | None]:
    versions = manifest["environment"].get("versions") or {}
    return [versions.get(name) for name in READERS]
