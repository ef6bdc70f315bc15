"""Training what methods need besides the models: `specbench train --method NAME`.

A trainer is a file here, NAME.py or NAME/train.py, with `train(job)`. It learns from documents that no test uses and
writes one head file (engine/models/heads.py), or a folder of them for a grid of recipes. template.py has all that
trainers of heads share which learn from the target's answers. A trainer may declare `STAGES`, the stages of its
training, each with a recipe of its own; `GOES_ON`, True if it can begin with an earlier head; `PRESETS`, the papers
whose recipes it has ("" first: a recipe of the method's own); `SCORED`, True if it scores what it generates; `DECODES`,
True if the pair's models decode in sessions, by --runtime, and their weights stay as they are; and `SHARED`, True if
several workers may make what it collects within `collecting`, or the stages or presets in which they may.
With `evaluations(job, device, dtype, runtime)`, the plans of runs with their folders, and `show_evaluations(runs)`,
which prints what they say, it takes --evaluate.
NAME is a method, or `draft`: the pair's draft model, which `sps` decodes with.

Installed packages bring trainers by entry points of the group `specbench.trainers`: NAME for a method of their own, and
in the extras NAME.PRESET for a preset of a trainer here. Their recipes lie in a folder `recipes` next to the module.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from specbench import config, methods, permissions
from specbench.base.console import say
from specbench.config import MethodSpec, PairSpec, UserError, plugins
from specbench.config.specs import ENTRY
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.runtimes import choose
from specbench.engine.runtimes.eager import EAGER
from specbench.measure import command, parts
from specbench.measure.gate import check_code
from specbench.measure.parts import Advance, Opened
from specbench.measure.staffing import Staffing
from specbench.methods import own
from specbench.plan import Plan, preparing
from specbench.training.collected import Share, sharing
from specbench.training.documents import plan_of_prompts, plan_of_splits
from specbench.training.recipe import load_recipe, parse_grid

FOLDER = Path(__file__).parent
DRAFT, DECODES_WITH_DRAFT = "draft", "sps"  # what is trained that is no method, and the method that shows it
EACH = 2  # shares of what is collected for each worker
DOCUMENTS = 50  # of each task, unless it is said; of a file of prompts, all
Recipe = TypeVar("Recipe", bound=config.Settings)


@dataclass(frozen=True)
class Job:
    """What a trainer is given; `plan` has the tasks, how many documents of each, and the seed."""

    spec: MethodSpec
    settings: config.Settings  # the method's own, validated
    pair: Pair
    plan: Plan
    out: Path
    data: tuple[str, ...] = ()  # TASK:SPLIT; empty: the calibration documents of the plan's suite
    recipe: MethodSpec | None = None  # of methods that have one
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # values of recipe settings; `out` is a folder then
    stage: str = ""  # of methods that have several
    preset: str = ""  # of methods that have recipes of several papers
    judge: str = ""  # who labels the data; empty: the method's own choice
    warm_up: Path | None = None  # the file of an earlier stage, or of an earlier head

    def recipe_as(self, form: type[Recipe]) -> Recipe:
        """The recipe, validated. Raises UserError for a value that the form does not take, and for a grid."""
        if not self.recipe:
            raise UserError(f"{self.method} has no recipe; write recipes/{self.method}.yaml next to its trainer")
        if self.grid:
            raise UserError(f"{self.method} is trained one head at a time; leave out --grid")
        return config.validated(form, self.recipe.values, self.recipe.name)

    def folder(self, content: str) -> Path:
        """The folder of what a training collects, NAME.CONTENT next to NAME.safetensors."""
        return self.out.with_name(f"{self.out.stem}.{content}")

    @property
    def method(self) -> str:
        """The name of the method, as it is typed."""
        return self.spec.method.removeprefix(ENTRY)

    def use(self, head: Path) -> str:
        """The command that decodes with a head."""
        return f"{self.run} --set {self.decodes}.head={head}"

    @property
    def begins_with(self) -> str:
        """The earlier head: the file of --warm-up, or what the method's setting `head` names."""
        return str(self.warm_up or self.spec.values["head"])

    @property
    def run(self) -> str:
        """The command that decodes with the method as it ships."""
        source = "--suite SUITE" if self.data else f"--suite {self.plan.suite}"
        if self.plan.prompts:
            source = "--prompts FILE"
        return f"specbench run --method {self.decodes}{self.pair_option} {source}"

    @property
    def decodes(self) -> str:
        """The name of what decodes: the method, or the preset of it, where presets are decoded apart."""
        return self.preset if self.preset == self.spec.name else self.method

    @property
    def pair_option(self) -> str:
        """The option that names the pair, after a space; empty for the default pair."""
        described = self.plan.pair.description
        name = described if described.startswith("target=") else self.pair.name
        return "" if name == "pocket" else f" --pair {name}"


@cache
def trainer(method: str) -> ModuleType | None:
    """The module that trains a method, or METHOD.PRESET; None if there is none.

    Raises UserError for one of a package that the command line does not name.
    """
    entry = plugins.entries("trainers").get(method.removeprefix(ENTRY))
    if entry and plugins.of_extras(entry):
        return entry.load()
    if entry and method.startswith(ENTRY):
        permissions.check_entry_point(method, f"the trainer of {entry.name}")
        return own.loaded(f"the trainer of {entry.name}", entry.load)
    stem = methods.stem_of(method)
    for name in (stem, f"{stem}/train"):
        if stem.isidentifier() and (FOLDER / f"{name}.py").is_file():
            module = importlib.import_module(f"{__package__}.{name.replace('/', '.')}")
            if hasattr(module, "train"):
                return module
    return None


def train(
    method: str,
    pair: str | PairSpec,
    suite: str | None,
    documents: int | None,
    seed: int,
    assignments: Sequence[str],
    device: str,
    dtype: str,
    runtime: str,
    data_dir: str | None,
    out: Path | None,
    data: Sequence[str] = (),
    recipe: Sequence[str] = (),
    grid: Sequence[str] = (),
    stage: str | None = None,
    judge: str | None = None,
    warm_up: Path | None = None,
    preset: str | None = None,
    staffing: Staffing | None = None,
    prompts: Path | None = None,
) -> Job | None:
    """Train a method's head for a pair on `documents` of each task of a suite, or of each TASK:SPLIT in `data`.

    Instead it may learn from a file of `prompts`, by default from all. Returns what was trained; None if an earlier
    call had finished.

    Without `stage`, a method that has several is trained in its first, and likewise for `preset`. The workers of
    `staffing` collect what it learns from, before this process trains. Raises UserError.
    """
    spec = config.load_method(DECODES_WITH_DRAFT if method == DRAFT else method)
    name = DRAFT if method == DRAFT else spec.method
    base = name.removeprefix(ENTRY)
    module = trainer(name)
    if module is None:
        brought = [name for name, entry in plugins.entries("trainers").items() if not plugins.of_extras(entry)]
        trainable = ", ".join((*(name for name in methods.names() if trainer(name)), *brought, DRAFT))
        raise UserError(f"{method} has nothing to train; these have: {trainable}{plugins.more()}")
    assigned = config.parse_assignments(assignments)
    if others := set(assigned) - {spec.name}:
        raise UserError(f"--set {others.pop()}.…: only {spec.name} is trained")
    spec = config.override(spec, assigned.get(spec.name, {}))
    settings = config.validated(methods.module(spec.method).Settings, spec.values, spec.name)
    of_stages = bool(judge or (warm_up and not getattr(module, "GOES_ON", False)))
    chosen = _chosen_stage(method, getattr(module, "STAGES", ()), stage, of_stages)
    chosen_preset = _chosen_preset(method, _presets(base, module), preset)
    part = chosen or chosen_preset
    module = trainer(f"{base}.{part}") or module
    shared = getattr(module, "SHARED", ())
    if staffing and shared is not True and part not in shared:
        what = f"{method} {part}".strip()
        raise UserError(f"{what} collects nothing that workers could share; leave out --workers")
    if not getattr(module, "DECODES", False):
        if runtime not in (choose.AUTO, EAGER.name):
            what = f"{method} {part}".strip()
            raise UserError(f"{what} learns from transformers' own forwards, of many texts; leave out --runtime")
        runtime = EAGER.name
    settled = load_recipe("-".join(part for part in (base, chosen, chosen_preset) if part), recipe)
    axes = parse_grid(grid)
    if settled is None and (recipe or grid):
        raise UserError(f"{method} is trained without a recipe; leave out --recipe and --grid")
    if bool(suite) + bool(data) + bool(prompts) != 1:
        raise UserError(
            "train needs --suite (calibration documents of its tasks), --data TASK:SPLIT or --prompts FILE, one of them"
        )
    if prompts and getattr(module, "SCORED", False):
        raise UserError(f"{method} learns from scored answers, and prompts of a file have no scores; take --suite")
    if prompts and data_dir:
        raise UserError("--prompts has documents of its own; leave out --data-dir")
    pair_spec = one_device(config.load_pair(pair))
    path = out or Path(f"{base}-{pair_spec.name}" + ("-grid" if axes else "" if name == DRAFT else ".safetensors"))
    if path.exists() and not (axes and path.is_dir()):
        if not checkpoint_of(path).exists():  # files are written whole or not at all
            raise UserError(f"{path} exists; if a training made it, that has finished: use it, or choose another --out")
        checkpoint_of(path).unlink()  # the training was stopped between writing the one and deleting the other
        say(f"{path}: its training has finished, and was stopped after that; to train again, choose another --out")
        return None
    if suite:
        plan = preparing(pair_spec, suite, spec, documents or DOCUMENTS, seed, data_dir)
    elif prompts:
        plan = plan_of_prompts(pair_spec, prompts, spec, documents, seed)
    else:
        plan = plan_of_splits(pair_spec, data, spec, documents or DOCUMENTS, seed, data_dir)
    if getattr(module, "SCORED", False):
        check_code(plan)
    job = partial(
        Job,
        spec=spec,
        settings=settings,
        plan=plan,
        out=path,
        data=tuple(data),
        recipe=settled,
        grid=axes,
        stage=chosen,
        preset=chosen_preset,
        judge=judge or "",
        warm_up=warm_up,
    )
    if staffing:
        placed = staffing.device(device)
        key = f"{base}.{part}" if trainer(f"{base}.{part}") else name
        opening = partial(_open, key, job, pair_spec, placed, dtype, runtime, EACH * staffing.workers)
        parts.carry_out(opening, "collecting, in shares", placed, staffing)
    made = job(pair=choose.placed(runtime, load_pair(pair_spec, device, dtype, runtime=runtime)))
    module.train(made)
    return made


def run_plans(plans: Iterable[tuple[Plan, Path]]) -> list[Path]:
    """Run plans, each into its folder, where what an earlier call began goes on; an interrupted one is the last.

    Returns the folders of those that are finished. Raises UserError as a run does.
    """
    finished = []
    for plan, folder in plans:
        if not command.carry_out(plan, folder):
            break
        finished.append(folder)
    return finished


def checkpoint_of(trained: Path) -> Path:
    """The checkpoint of a training, which is deleted when what it makes is written."""
    return trained.with_suffix(".checkpoint.pt")


def _presets(name: str, module: ModuleType) -> tuple[str, ...]:
    """The presets of a trainer, its own and those of the extras; "" first if it has a recipe without one."""
    own = getattr(module, "PRESETS", ())
    brought = [entry.removeprefix(f"{name}.") for entry in plugins.extras("trainers") if entry.startswith(f"{name}.")]
    return (*(own or ("",)), *brought) if brought else own


def one_device(pair: PairSpec) -> PairSpec:
    """The pair. Raises UserError if its drafts have a device of their own: training has all models on one."""
    if pair.draft_device:
        raise UserError(f"training has all models on one device; leave out the draft's, {pair.draft_device}")
    return pair


def _open(
    name: str, waiting: Callable[..., Job], pair: PairSpec, device: str, dtype: str, runtime: str, count: int
) -> Opened[None, None]:
    """Load the pair, which a job waits for; a part collects one share of `count`, and trains nothing."""
    job = waiting(pair=choose.placed(runtime, load_pair(pair, device, dtype, runtime=runtime)))
    module = trainer(name)
    assert module

    def collect(number: int, advance: Advance) -> None:
        with sharing(Share(number, count)):
            module.train(job)
        advance(1)

    return Opened(None, count, count, collect)


def _chosen_stage(method: str, stages: Sequence[str], stage: str | None, other_options: bool) -> str:
    """The stage to train; empty for a method without stages. Raises UserError for options that it does not have."""
    if not stages and (stage or other_options):
        raise UserError(f"{method} is trained in one stage; leave out --stage, --judge and --warm-up")
    if stages and stage and stage not in stages:
        raise UserError(f"--stage {stage}: {method} is trained in the stages {' and '.join(stages)}; name one of them")
    return stage or (stages[0] if stages else "")


def _chosen_preset(method: str, presets: Sequence[str], preset: str | None) -> str:
    """The paper whose recipe is taken, by default that of the settings' name; empty for a method with a single recipe.

    Raises UserError for another one.
    """
    if preset and preset not in presets:
        named = ", ".join(filter(None, presets))
        which = f"has the recipes of {named}; name one of them" if presets else "has a single recipe"
        raise UserError(f"--preset {preset}: {method} {which}")
    return preset or (method if method in presets else presets[0] if presets else "")
