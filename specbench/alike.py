"""Whether runs may stand side by side, and what their methods are called there."""

import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.config import UserError
from specbench.environment import MUST_AGREE
from specbench.stored import StoredRun, runtime_of, weights_of

HASH = " hash"


def check_alike(runs: Sequence[StoredRun], allowed: Sequence[str]) -> list[str]:
    """Compare what runs were made on. Returns lines for the table's caption; raises UserError on a real difference."""
    lines = []
    first = runs[0]
    known = (*MUST_AGREE, "dtype", "runtime", "prefix", "baseline", "documents", "prompts", "models")
    for field in allowed:
        if field not in known:
            raise UserError(f"--allow-mismatch {field}: no such field; there are {', '.join(known)}")
    for one, other in itertools.combinations(runs, 2):
        if one.manifest.get("started") and one.manifest == other.manifest:
            raise UserError(f"{other.folder} is a copy of {one.folder}; give one of them")
    set_against = _otherwise_set_against(runs)
    for other in runs[1:]:
        differing = _differences(first, other)
        if other.folder in set_against:
            differing["baseline"] = set_against[other.folder]
        refused = [f"{field} ({text})" for field, text in differing.items() if field not in allowed]
        if refused:
            fields = " ".join(f"--allow-mismatch {field}" for field in differing if field not in allowed)
            raise UserError(
                f"{first.folder} and {other.folder} differ in {'; '.join(refused)}: their figures do not compare; "
                f"run both alike, or pass {fields}"
            )
        lines += [f"MISMATCH allowed, {first.name} / {other.name}: {f}: {text}" for f, text in differing.items()]
    for run in runs:
        if unknown := [key for key, value in run.conditions().items() if value is None]:
            lines.append(f"{run.name} does not tell its {', '.join(unknown)}: whether it compares is not known")
    return lines


def _otherwise_set_against(runs: Sequence[StoredRun]) -> dict[Path, str]:
    """In words, by folder: which methods of a run have another baseline there than in an earlier one."""
    found: dict[Path, str] = {}
    earlier: dict[str, str] = {}
    for run, labels in zip(runs, method_labels(runs), strict=True):
        named = {label: labels[own] for name, label in labels.items() if (own := run.plan.against(name))}
        other = {label: own for label, own in named.items() if earlier.get(label, own) != own}
        if other:
            found[run.folder] = ", ".join(f"{label}: {earlier[label]} / {own}" for label, own in other.items())
        earlier = named | earlier
    return found


def _differences(one: StoredRun, other: StoredRun) -> dict[str, str]:
    """What differs between two runs that should agree, in words, by field; baselines aside."""
    a, b = one.conditions(), other.conditions()
    found = {
        key: f"{_short(a[key])} / {_short(b[key])}" for key in a if None not in (a[key], b[key]) and a[key] != b[key]
    }
    names = runtime_of(one.manifest), runtime_of(other.manifest)
    if "runtime" in found and names[0] != names[1]:
        found["runtime"] = " / ".join(names)
    mine, theirs = one.documents(), other.documents()
    shared = [task for task in mine if task in theirs]
    if counts := [f"{t}: {len(mine[t])} / {len(theirs[t])}" for t in shared if mine[t].keys() != theirs[t].keys()]:
        found["documents"] = "; ".join(counts)
    prompts = [t for t in shared if any(theirs[t].get(doc, text) != text for doc, text in mine[t].items())]
    settings, other_settings = one.manifest["generation"], other.manifest["generation"]
    prompts += [t for t in shared if t not in prompts and settings.get(t) != other_settings.get(t)]
    if prompts:
        found["prompts"] = f"of {', '.join(prompts)}"
    models, other_models = weights_of(one.manifest), weights_of(other.manifest)
    if one.plan.pair.name == other.plan.pair.name and models and other_models and models != other_models:
        found["models"] = f"two pairs are called {one.plan.pair.name}"
    return found


def _short(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def pair_labels(runs: Sequence[StoredRun]) -> list[str]:
    """A label for the pair of each run: its name, with the runtime where runs of different ones stand side by side."""
    runtimes = [runtime_of(run.manifest) for run in runs]
    several = len(set(runtimes)) > 1
    return [
        f"{run.plan.pair.name} {runtime}" if several else run.plan.pair.name
        for run, runtime in zip(runs, runtimes, strict=True)
    ]


def method_labels(runs: Sequence[StoredRun]) -> list[dict[str, str]]:
    """A label for each method of each run: its name, with the settings by which its namesakes differ."""
    namesakes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    facts: list[dict[str, dict[str, Any]]] = []
    for run in runs:
        inputs = run.manifest["inputs"]
        facts.append({m.name: _facts(m.method, m.values, inputs.get(m.name, {})) for m in run.plan.methods})
        for name, values in facts[-1].items():
            namesakes[name].append(values)
    labels: list[dict[str, str]] = []
    for methods in facts:
        labels.append({})
        for name, values in methods.items():
            differing = [k for k in values if any(other.get(k) != values[k] for other in namesakes[name])]
            text = ", ".join(f"{k}={values[k]}" for k in differing if k.removesuffix(HASH) == k or differing == [k])
            labels[-1][name] = f"{name} {text}" if text else name
    return labels


def _facts(method: str, settings: dict[str, Any], inputs: dict[str, str]) -> dict[str, Any]:
    """All that makes a method what it is; files that it was given count by their hash."""
    return {**settings, **{f"{name}{HASH}": value for name, value in inputs.items()}, "method": method}
