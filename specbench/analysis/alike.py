"""Check that runs may be compared with each other, and label their pairs and methods in the comparison."""

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.base.environment import MISMATCHES
from specbench.config import UserError
from specbench.results.stored import StoredRun, runtime_of

HASH = " hash"


def check_alike(runs: Sequence[StoredRun], allowed: Sequence[str]) -> list[str]:
    """Check that runs agree in what their figures depend on; return lines for the table's caption.

    Raises UserError for a difference that is not in `allowed`.
    """
    lines = []
    first = runs[0]
    for field in allowed:
        if field not in MISMATCHES:
            raise UserError(f"--allow-mismatch {field}: no such field; there are {', '.join(MISMATCHES)}")
    refuse_copies(runs)
    for other, differing in zip(runs[1:], differences(runs), strict=True):
        refused = [f"{field} ({text})" for field, text in differing.items() if field not in allowed]
        if refused:
            options = " ".join(f"--allow-mismatch {field}" for field in differing if field not in allowed)
            raise UserError(
                f"{first.folder} and {other.folder} differ in {'; '.join(refused)}: their figures cannot be compared; "
                f"run both with the same settings, or pass {options}"
            )
        lines += [f"MISMATCH allowed, {first.name} / {other.name}: {f}: {text}" for f, text in differing.items()]
    silent: dict[tuple[str, ...], list[str]] = {}  # runs by what they do not record
    for run in runs if len(runs) > 1 or first.plan.own else ():  # of servers alone little is known: told to compare
        if unknown := tuple(key for key, value in run.conditions().items() if value is None):
            silent.setdefault(unknown, []).append(run.name)
    for unknown, names in silent.items():
        one, its, it = ("does", "its", "it") if len(names) == 1 else ("do", "their", "they")
        fields = ", ".join(unknown)
        lines.append(f"{', '.join(names)} {one} not record {its} {fields}: {it} may not be comparable")
    if len(runs) == 1:
        return lines
    from specbench.results import same_models

    pairs = Counter(run.plan.pair.name for run in runs)
    earlier = [run.name for run in runs if pairs[run.plan.pair.name] > 1 and same_models.untold(run.manifest)]
    if earlier:
        lines.append(
            f"{', '.join(earlier)}: no tokenizers and configurations on record; they may differ from those of "
            "the other runs"
        )
    return lines


def refuse_copies(runs: Sequence[StoredRun]) -> None:
    """Raises UserError if one of the runs is a copy of another."""
    for run, other in itertools.combinations(runs, 2):
        if run.manifest.get("started") and run.manifest == other.manifest:
            raise UserError(f"{other.folder} is a copy of {run.folder}; give one of them")


def differences(runs: Sequence[StoredRun]) -> list[dict[str, str]]:
    """Of each run but the first, what differs from earlier ones that must agree, in words, by field."""
    first, baselines = runs[0], _differing_baselines(runs)
    first_of = {run.plan.pair.name: run for run in reversed(runs)}
    differing = [_of_one_pair(first_of[run.plan.pair.name], run) | _differences(first, run) for run in runs[1:]]
    for run, of_run in zip(runs[1:], differing, strict=True):
        of_run |= {"baseline": baselines[run.folder]} if run.folder in baselines else {}
    return differing


def _differing_baselines(runs: Sequence[StoredRun]) -> dict[Path, str]:
    """By folder, in words: the methods that have another baseline in this run than in an earlier one."""
    differing: dict[Path, str] = {}
    earlier: dict[str, str] = {}
    for run, labels in zip(runs, method_labels(runs), strict=True):
        by_label = {label: labels[baseline] for name, label in labels.items() if (baseline := run.plan.against(name))}
        changed = {label: baseline for label, baseline in by_label.items() if earlier.get(label, baseline) != baseline}
        if changed:
            differing[run.folder] = ", ".join(f"{label}: {earlier[label]} / {new}" for label, new in changed.items())
        earlier = by_label | earlier
    return differing


def _differences(run: StoredRun, other: StoredRun) -> dict[str, str]:
    """What differs between two runs that should agree, in words, by field; without the baselines."""
    left, right = run.conditions(), other.conditions()
    differing = {
        key: f"{_short(left[key])} / {_short(right[key])}"
        for key in left
        if None not in (left[key], right.get(key)) and left[key] != right[key]
    }
    names = runtime_of(run.manifest), runtime_of(other.manifest)
    if "runtime" in differing and names[0] != names[1]:
        differing["runtime"] = " / ".join(names)
    mine, theirs = run.documents(), other.documents()
    shared = [task for task in mine if task in theirs]
    if counts := [f"{t}: {len(mine[t])} / {len(theirs[t])}" for t in shared if mine[t].keys() != theirs[t].keys()]:
        differing["documents"] = "; ".join(counts)
    prompts = [t for t in shared if any(theirs[t].get(doc, text) != text for doc, text in mine[t].items())]
    settings, other_settings = run.manifest["generation"], other.manifest["generation"]
    prompts += [t for t in shared if t not in prompts and settings.get(t) != other_settings.get(t)]
    if prompts:
        differing["prompts"] = f"of {', '.join(prompts)}"
    return differing


def _of_one_pair(run: StoredRun, other: StoredRun) -> dict[str, str]:
    """What differs between two runs of pairs of one name, in words, by field, as far as both tell it."""
    if not (run.manifest["models"] and other.manifest["models"]):
        return {}
    from specbench.results import same_models

    differing = {}
    if models := same_models.differences(run.manifest, other.manifest):
        what = f"{other.name} has another {' and another '.join(models)} than {run.name}"
        differing["models"] = f"two pairs are called {run.plan.pair.name}: {what}"
    mine, theirs = run.token_ids(), other.token_ids()
    if tasks := [t for t in mine if any(theirs.get(t, {}).get(doc, ids) != ids for doc, ids in mine[t].items())]:
        differing["prompts"] = f"token ids of {', '.join(tasks)}"
    return differing


def _short(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def pair_labels(runs: Sequence[StoredRun]) -> list[str]:
    """A label for the pair of each run: its name, followed by the runtime if the runs have different ones."""
    runtimes = [runtime_of(run.manifest) for run in runs]
    several = len(set(runtimes)) > 1
    return [
        f"{run.plan.pair.name} {runtime}" if several else run.plan.pair.name
        for run, runtime in zip(runs, runtimes, strict=True)
    ]


def method_labels(runs: Sequence[StoredRun]) -> list[dict[str, str]]:
    """A label for each method of each run: its name, and the settings in which methods of that name differ."""
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
    """Everything that defines a method; its input files are represented by their hashes."""
    return {**settings, **{f"{name}{HASH}": value for name, value in inputs.items()}, "method": method}
