"""What the HTML page says of a run's environment and settings."""

import json
from typing import Any

from specbench.report.page_documents import PageRun
from specbench.results.stored import StoredRun

ELSEWHERE = {"pair", "methods", "tasks", "baseline", "baselines"}  # parts of a plan that are shown by themselves


def of_run(source: PageRun) -> dict[str, Any]:
    """The settings and the environment of a run, as lists of names and values."""
    run, plan, manifest = source.run, source.run.plan, source.run.manifest
    baselines = [f"{base} of {name}" for name, base in plan.baselines.items() if name != base]
    facts = {"pair": f"{plan.pair.name}: {plan.pair.description}"}
    facts |= {"baseline": ", ".join([plan.baseline or "none", *baselines])}
    facts |= _imported(manifest["imported"]) if "imported" in manifest else _settings(run)
    environment = dict(manifest["environment"])
    environment |= environment.pop("versions", None) or {}
    return {
        "name": run.name,
        "started": manifest.get("started") or "",
        "command": " ".join(environment.pop("command", None) or []),
        "facts": [(key, _flat(value)) for key, value in facts.items()],
        "environment": [
            (key.replace("_", " "), _flat(value)) for key, value in environment.items() if value not in (None, "")
        ],
        "models": [(role, _flat(model)) for role, model in (manifest["models"] or {}).items()],
        "methods": [
            {
                "name": source.labels[spec.name],
                "description": spec.description,
                "paper": spec.paper,
                "settings": [(key, _flat(s.value), s.source) for key, s in spec.settings.items()],
                "inputs": [(f"{key} (hash)", value) for key, value in manifest["inputs"].get(spec.name, {}).items()],
            }
            for spec in plan.methods
        ],
    }


def _settings(run: StoredRun) -> dict[str, Any]:
    """The plan as the run recorded it: what an older run did not record is not made up."""
    plan, recorded = run.plan.model_dump(mode="json"), run.manifest["plan"]
    facts = {name: value for name, value in plan.items() if name in recorded and name not in ELSEWHERE}
    facts = {name: value for name, value in facts.items() if value is not None}
    for line in run.plan.tasks:
        fewshot = {} if line.fewshot is None else {"fewshot": line.fewshot}
        facts[f"task {line.task}"] = run.manifest["generation"].get(line.task, {}) | fewshot
    return facts


def _imported(imported: Any) -> dict[str, Any]:
    """Where an imported run comes from. Its plan is none: another tool ran it, under settings that it did not tell."""
    facts = {"imported from": imported.get("from"), "settings": "not told"} if isinstance(imported, dict) else {}
    files = imported.get("files") if isinstance(imported, dict) else None
    for file in files if isinstance(files, list) else []:
        if isinstance(file, dict):
            facts[f"file of {file.get('method')}"] = {"name": file.get("file"), "sha256": file.get("sha256")}
    return facts


def _flat(value: Any) -> str:
    """A setting in a line of text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_flat(part)}" for key, part in value.items())
    if isinstance(value, list | bool):
        return json.dumps(value, ensure_ascii=False)
    return "none" if value is None else str(value)
