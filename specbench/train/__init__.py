"""Training what has weights beside the models: `specbench train --method NAME`.

Each trainer is a module with `train(job)`, which learns from documents that no test uses and writes one head file
(specbench/heads.py).
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench import config, methods
from specbench.config import MethodSpec, Plan, UserError
from specbench.models import Pair, load_pair

TRAINERS = {
    "judge": "specbench.train.judge",
}


@dataclass(frozen=True)
class Job:
    """What a trainer is asked for; `plan` has the tasks, how many documents of each, and the seed."""

    spec: MethodSpec
    settings: config.Settings  # the method's own, validated
    pair: Pair
    plan: Plan
    out: Path


def train(
    method: str,
    pair: str,
    suite: str,
    documents: int,
    seed: int,
    assignments: Sequence[str],
    device: str,
    dtype: str,
    data_dir: str | None,
    out: Path | None,
) -> None:
    """Train a method's head for a pair on `documents` of each task of a suite. Raises UserError."""
    spec = config.load_method(method)
    if spec.method not in TRAINERS:
        raise UserError(f"{method} has nothing to train; these have: {', '.join(TRAINERS)}")
    assigned = config.parse_assignments(assignments)
    if others := set(assigned) - {spec.name}:
        raise UserError(f"--set {others.pop()}.…: only {spec.name} is trained")
    spec = config.override(spec, assigned.get(spec.name, {}))
    settings = config.validated(methods.module(spec.method).Settings, spec.values, spec.name)
    pair_spec = config.load_pair(pair)
    path = out or Path(f"{spec.method}-{pair_spec.name}.safetensors")
    if path.exists():
        raise UserError(f"{path} exists; choose another --out")
    plan = config.preparing(pair_spec, suite, spec, documents, seed, data_dir)
    trainer = importlib.import_module(TRAINERS[spec.method])
    trainer.train(Job(spec, settings, load_pair(pair_spec, device, dtype), plan, path))
