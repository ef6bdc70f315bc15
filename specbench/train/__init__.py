"""Training what has weights beside the models: `specbench train --method NAME`.

Each trainer is a module with `train(job)`, which learns from documents that no test uses and writes one head file
(specbench/heads.py), or a folder of them for a grid of recipes.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench import config, methods, permissions
from specbench.config import MethodSpec, PairSpec, TaskLine, UserError
from specbench.models import Pair, load_pair
from specbench.plan import Plan, preparing
from specbench.train.recipe import load_recipe, parse_grid

TRAINERS = {
    "judge": "specbench.train.judge",
    "specdecpp": "specbench.train.specdecpp",
    "eagle3": "specbench.train.eagle3",
    "vocabtrim": "specbench.train.vocabtrim",
    "cospec": "specbench.train.cospec",
}
SCORED = ("judge", "cospec")  # learn from the scores of what they generate
STAGES = {"cospec": ("sft", "rl")}  # of methods that are trained in several, each with a recipe


@dataclass(frozen=True)
class Job:
    """What a trainer is asked for; `plan` has the tasks, how many documents of each, and the seed."""

    spec: MethodSpec
    settings: config.Settings  # the method's own, validated
    pair: Pair
    plan: Plan
    out: Path
    data: tuple[str, ...] = ()  # TASK:SPLIT; empty: the calibration documents of the plan's suite
    recipe: MethodSpec | None = None  # of methods that have one
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # values of recipe settings; `out` is a folder then
    stage: str = ""  # of methods that have several
    judge: str = ""  # who labels what is learned from; empty: the method's own choice
    warm_up: Path | None = None  # what an earlier stage wrote

    def use(self, head: Path) -> str:
        """The command that decodes with a head."""
        return f"{self.run} --set {self.spec.method}.head={head}"

    @property
    def run(self) -> str:
        """The command that decodes with the method, as it ships."""
        suite = "SUITE" if self.data else self.plan.suite
        return f"specbench run --method {self.spec.method}{self.pair_option} --suite {suite}"

    @property
    def pair_option(self) -> str:
        """The pair as it is typed, behind a space; empty for the default one."""
        typed = self.plan.pair.description if self.pair.name == config.OWN_PAIR else self.pair.name
        return "" if typed == "pocket" else f" --pair {typed}"


def train(
    method: str,
    pair: str,
    suite: str | None,
    documents: int,
    seed: int,
    assignments: Sequence[str],
    device: str,
    dtype: str,
    data_dir: str | None,
    out: Path | None,
    data: Sequence[str] = (),
    recipe: Sequence[str] = (),
    grid: Sequence[str] = (),
    stage: str | None = None,
    judge: str | None = None,
    warm_up: Path | None = None,
) -> None:
    """Train a method's head for a pair on `documents` of each task of a suite, or of each TASK:SPLIT in `data`.

    Without `stage` a method that has several is trained in its first.

    Raises UserError.
    """
    spec = config.load_method(method)
    if spec.method not in TRAINERS:
        raise UserError(f"{method} has nothing to train; these have: {', '.join(TRAINERS)}")
    assigned = config.parse_assignments(assignments)
    if others := set(assigned) - {spec.name}:
        raise UserError(f"--set {others.pop()}.…: only {spec.name} is trained")
    spec = config.override(spec, assigned.get(spec.name, {}))
    settings = config.validated(methods.module(spec.method).Settings, spec.values, spec.name)
    stages = STAGES.get(spec.method, ())
    if not stages and (stage or judge or warm_up):
        raise UserError(f"{method} is trained in one stage; leave out --stage, --judge and --warm-up")
    if stages and stage and stage not in stages:
        raise UserError(f"--stage {stage}: {method} is trained in the stages {' and '.join(stages)}; name one of them")
    chosen = stage or (stages[0] if stages else "")
    own_recipe = load_recipe("-".join([spec.method, *([chosen] if chosen else [])]), recipe)
    axes = parse_grid(grid)
    if own_recipe is None and (recipe or grid):
        raise UserError(f"{method} is trained without a recipe; leave out --recipe and --grid")
    if (suite is None) == (not data):
        raise UserError("train needs --suite (calibration documents of its tasks) or --data TASK:SPLIT, one of them")
    pair_spec = config.load_pair(pair)
    path = out or Path(f"{spec.method}-{pair_spec.name}" + ("-grid" if axes else ".safetensors"))
    if path.exists() and not (axes and path.is_dir()):
        raise UserError(f"{path} exists; choose another --out")
    if suite:
        plan = preparing(pair_spec, suite, spec, documents, seed, data_dir)
    else:
        plan = _of_splits(pair_spec, data, spec, documents, seed, data_dir)
    if spec.method in SCORED:
        permissions.check_code(plan)
    trainer = importlib.import_module(TRAINERS[spec.method])
    loaded = load_pair(pair_spec, device, dtype)
    trainer.train(Job(spec, settings, loaded, plan, path, tuple(data), own_recipe, axes, chosen, judge or "", warm_up))


def _of_splits(
    pair: PairSpec, data: Sequence[str], spec: MethodSpec, documents: int, seed: int, data_dir: str | None
) -> Plan:
    """A plan whose documents are named as TASK:SPLIT."""
    from specbench.train.documents import named

    return Plan(
        pair=pair,
        methods=(spec,),
        baseline=None,
        suite=" ".join(data),
        tasks=tuple(TaskLine(task=source.task) for source in named(data)),
        limit=documents,
        data_dir=data_dir,
        seed=seed,
    )
