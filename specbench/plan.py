"""The plan of a run: all that decides what it does, resolved from a pair, a suite, methods and options."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from specbench import config
from specbench.base.console import console
from specbench.base.errors import OPTIONS
from specbench.config import (
    BATCHED,
    RUNTIMES,
    MethodSpec,
    PairSpec,
    SamplingSpec,
    Settings,
    SuiteSpec,
    TaskInfo,
    TaskLine,
    UserError,
    load_suite,
    task_info,
)
from specbench.config.chosen import EACH, assigned, by_name, of_servers, swept, with_baselines
from specbench.config.specs import SERVER, ConstraintSpec


class Plan(Settings):
    """All that decides what a run does. A run can be repeated from its plan, and goes on under the same plan only."""

    pair: PairSpec
    methods: tuple[MethodSpec, ...]  # the baseline is one of them
    baseline: str | None
    baselines: dict[str, str] = Field(default={}, description="by method, if it is another one")
    suite: str
    tasks: tuple[TaskLine, ...]
    limit: int | None = None
    max_length: int | None = None
    split: str | None = Field(default=None, description="documents other than those that the tasks evaluate")
    repeats: int = Field(default=1, ge=1)
    seed: int = 0
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    min_p: float = Field(default=0.0, ge=0, lt=1)
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    presence_penalty: float = Field(default=0.0, allow_inf_nan=False)
    frequency_penalty: float = Field(default=0.0, allow_inf_nan=False)
    device: str = "auto"
    dtype: str = "auto"
    runtime: str = "auto"
    batch: int = Field(default=1, ge=1, description="documents that are decoded together")
    time_documents: int = Field(default=0, ge=0, description="documents of each task that a run in batches times alone")
    untimed: bool = Field(default=False, description="leave times out, as where processes share a device")
    concurrency: int = Field(default=1, ge=1, description="requests that a server has at a time")
    rate: float | None = Field(default=None, gt=0, description="requests a second that a server gets, instead")
    arrivals: str | None = Field(default=None, description="poisson, constant, or a file of times; with a rate")
    ignore_eos: bool = Field(default=False, description="texts go on after an end token, up to their limit")
    constraint: ConstraintSpec | None = Field(default=None, description="what every answer must be")
    share_prefix: bool = Field(default=True, description="read the common beginning of a task's prompts once")
    keep_prompts: bool = Field(default=True, description="write prompts and reference answers into the run folder")
    data_dir: str | None = None
    chat_template: bool = False
    system_instruction: str | None = Field(
        default=None, description="what every prompt begins with, as a system's words"
    )
    fewshot_as_multiturn: bool = Field(default=True, description="in a chat template, examples are turns of their own")
    prompts: str | None = Field(default=None, description="a file of prompts without scores, instead of tasks")
    trajectories: bool = Field(default=False, description="that file holds conversations, to decode every answer again")
    trust_remote_code: bool = False
    allow_pickle: bool = False

    @field_validator("runtime")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in RUNTIMES:
            raise ValueError(f"--runtime {name}: there is no such runtime; choose {', '.join(RUNTIMES)}")
        return name

    def against(self, method: str) -> str | None:
        """The baseline of a method, by name; None if the run has none."""
        return self.baselines.get(method, self.baseline)

    def info(self, task: str) -> TaskInfo:
        """What is known of one of the plan's tasks, or of another one by name. Raises UserError if nothing is."""
        own = next((line.own for line in self.tasks if line.task == task and line.own), None)
        return own or task_info(task)

    @property
    def servers(self) -> tuple[MethodSpec, ...]:
        """The methods that are servers of other engines."""
        return tuple(spec for spec in self.methods if spec.method == SERVER)

    @property
    def own(self) -> tuple[MethodSpec, ...]:
        """The methods that are decoded here."""
        return tuple(spec for spec in self.methods if spec.method != SERVER)

    @property
    def sampling(self) -> SamplingSpec:
        return SamplingSpec(**{name: getattr(self, name) for name in SamplingSpec.model_fields})


def resolve_plan(
    methods: Sequence[str],
    suite: str | None = None,
    pair: str | PairSpec = "pocket",
    assignments: Sequence[str] = (),
    baseline: str | None = EACH,
    limit: int | None = None,
    data_dir: str | None = None,
    params: Sequence[str] = (),
    task: Sequence[str] = (),
    task_dir: Path | None = None,
    prompts: Path | None = None,
    trajectories: Path | None = None,
    max_new_tokens: int | None = None,
    servers: Sequence[str] = (),
    **options: Any,
) -> Plan:
    """The plan that a command line asks for.

    Args:
        methods: names or YAML files; if empty, the suite's own methods.
        suite: a name or a YAML file.
        pair: the same, also as target=NAME_OR_PATH,draft=NAME_OR_PATH, or loaded already.
        assignments: METHOD.KEY=VALUE texts, which change settings before the baselines join.
        baseline: the method that all speedups are against, EACH for every method's own, or None.
        params: KEY=V1,V2,… texts; each method but the baseline becomes a variant for every combination of values.
        limit: documents of each task; None for all.
        data_dir: a folder of DATA_SPLIT.jsonl files that replace the hub's data sets.
        task: instead of a suite, tasks by name or YAML file.
        task_dir: a folder of tasks in lm-eval's form; without a suite and `task`, all of them are run.
        prompts: instead of a suite, a file of prompts without scores.
        trajectories: the same, of recorded conversations whose answers are decoded again.
        servers: NAME=URL texts or YAML files, of engines that are measured next to the methods.
        max_new_tokens: the limit of each answer, in tokens; default: that of the suite's lines or of the tasks.
        options: further fields of the plan; those of the sampling and chat_template are the suite's if missing or
            None. Prompts of a file are wrapped if the tokenizer has a template.

    Raises:
        UserError: a name, setting or value does not exist, or two of them contradict each other.
    """
    pair_spec = config.load_pair(pair)
    suite_spec = documents(suite, task, task_dir, prompts, max_new_tokens, trajectories)
    file = prompts or trajectories
    if options.get("batch", 1) > 1:
        check_batches(str(options.get("runtime", "auto")))
    if options.get("time_documents") and options.get("batch", 1) == 1:
        raise UserError("--time-documents is for runs in batches: add --batch, or leave it out")
    if file and (data_dir or options.get("split")):
        option = "--trajectories" if trajectories else "--prompts"
        raise UserError(f"{option} has documents of its own; leave out --data-dir and --split")
    if trajectories and options.get("batch", 1) > 1 and options.get("share_prefix", True):
        raise UserError("a cache is kept from turn to turn of one text at a time; with --batch add --no-share-prefix")
    served = _servers(servers)
    check_loops(served, options)
    if not (methods or suite_spec.methods or served):
        what = f"the suite {suite} brings no methods" if suite else "no methods are named"
        raise UserError(f"{what}; name some: --method csd" + f" --suite {suite}" * bool(suite))
    brought = [] if methods or served else config.suite_methods(suite_spec)
    common = config.load_method(baseline) if baseline not in (None, EACH) else None
    specs = by_name([*([common] if common else []), *map(config.load_method, methods), *brought, *served])
    specs = assigned(specs, assignments)
    if params:
        specs = swept(specs, params, common, baseline)
    against: dict[str, Any] = dict.fromkeys(specs, common and common.name)
    if baseline == EACH:
        specs, against = with_baselines(specs)
        against |= of_servers(specs)
    tasks = resolve_tasks(suite_spec, pair_spec, data_dir)
    if [line.task for line in tasks] != [line.task for line in suite_spec.tasks]:
        named = ", ".join(line.task for line in tasks)
        console.print(f"pair {pair_spec.name}: the bundled tasks stand in: {named}", style="dim")
    if file:
        from specbench.config.prompts import prompt_constraint

        options["constraint"] = prompt_constraint(file, options.get("constraint"), bool(trajectories))
    chosen = {key: options.pop(key, None) for key in SamplingSpec.model_fields}
    sampling = suite_spec.sampling.model_dump() | {key: value for key, value in chosen.items() if value is not None}
    main = next(iter(against.values()))
    wrapped = options.pop("chat_template", None)
    fields = {
        "pair": pair_spec,
        "methods": tuple(specs.values()),
        "baseline": main,
        "baselines": {name: base for name, base in against.items() if base != main},
        "suite": suite_spec.name,
        "tasks": tasks,
        "limit": limit or suite_spec.limit,
        "max_length": suite_spec.max_length,
        "chat_template": suite_spec.chat_template if wrapped is None else wrapped,
        "data_dir": data_dir,
        "prompts": str(file.resolve()) if file else None,
        "trajectories": bool(trajectories),
    }
    return config.validated(Plan, fields | sampling | options, OPTIONS)


def _servers(texts: Sequence[str]) -> list[MethodSpec]:
    """The servers that a command line names. Raises UserError as `load_servers`."""
    if not texts:
        return []
    from specbench.config.servers import load_servers

    return load_servers(texts)


def check_batches(runtime: str) -> None:
    """Raise UserError if a runtime computes no batches."""
    if runtime in RUNTIMES and runtime not in (*BATCHED, "auto"):
        raise UserError(f"--runtime {runtime} computes no batches; use {' or '.join(BATCHED)}")


def documents(
    suite: str | None,
    task: Sequence[str] = (),
    task_dir: Path | None = None,
    prompts: Path | None = None,
    max_new_tokens: int | None = None,
    trajectories: Path | None = None,
) -> SuiteSpec:
    """The suite that a command line names, or one that is made of its tasks or prompts. Raises UserError."""
    file = prompts or trajectories
    if bool(suite) + bool(task) + bool(prompts) + bool(trajectories) > 1 or (file and task_dir):
        raise UserError(
            "--suite, --task (with or without --task-dir), --prompts and --trajectories each say what to run; give one"
        )
    if not (suite or task or task_dir or file):
        raise UserError(
            "say what to run: --suite NAME, --task NAME, --task-dir FOLDER, --prompts FILE.jsonl or --trajectories "
            "FILE.jsonl"
        )
    if suite:
        made = load_suite(suite, task_dir)
    elif file:
        from specbench.config.prompts import prompt_lines

        lines = prompt_lines(file, max_new_tokens, bool(trajectories))
        made = SuiteSpec(name=file.stem, description="", tasks=lines, chat_template=True)
    else:
        named = dict.fromkeys(task or (_names_in(task_dir) if task_dir else ()))
        lines = config.checked_lines([TaskLine(task=name) for name in named], None, task_dir, "--task")
        groups = [name for name in named if not name.endswith((".yaml", ".yml")) and len(lines) > len(named)]
        title = "-".join(groups or [line.task for line in lines])
        made = SuiteSpec(name=title, description="", tasks=lines)
    if max_new_tokens:
        lines = tuple(line.model_copy(update={"max_new_tokens": max_new_tokens}) for line in made.tasks)
        made = made.model_copy(update={"tasks": lines})
    return made


def _names_in(task_dir: Path) -> Iterable[str]:
    """The tasks of a folder. Raises UserError as `tasks_of_folder`."""
    from specbench.config.own_tasks import tasks_of_folder

    return tasks_of_folder(task_dir)


def check_loops(servers: Sequence[MethodSpec], options: dict[str, Any]) -> None:
    """Raise UserError if how requests go to servers contradicts itself, or there is no server."""
    concurrency, rate = options.get("concurrency", 1), options.get("rate")
    if not servers and (concurrency != 1 or rate is not None or options.get("arrivals")):
        raise UserError("--concurrency, --rate and --arrivals are for servers: add --server NAME=URL")
    if concurrency != 1 and rate is not None:
        raise UserError("--concurrency sends the next request when one is done, --rate at scheduled times; give one")
    if rate is None and options.get("arrivals"):
        raise UserError("--arrivals goes with --rate, the requests a second")
    if options.get("arrivals"):
        from specbench.base.arrivals import Arrivals

        Arrivals.of(options["arrivals"])


def resolve_tasks(suite: SuiteSpec, pair: PairSpec, data_dir: str | None) -> tuple[TaskLine, ...]:
    """The suite's tasks; for a bundled pair without `data_dir`, their bundled counterparts.

    No task comes twice. If a line has that counterpart alone, it decides the counterpart's settings; else the first
    mixture with it does.
    """
    if not pair.bundled or data_dir:
        return suite.tasks
    infos = [(line, line.own or task_info(line.task)) for line in suite.tasks]
    places = [(line, info.counterparts or (line.task,)) for line, info in infos]
    alone: dict[str, TaskLine] = {}
    for line, (name, *others) in places:
        if not others:
            alone.setdefault(name, line)
    lines = {name: alone.get(name, line).model_copy(update={"task": name}) for line, names in places for name in names}
    return tuple(lines.values())


def preparing(pair: PairSpec, suite: str, spec: MethodSpec, documents: int, seed: int, data_dir: str | None) -> Plan:
    """A plan for calibration or training: one method, and a number of documents of each task of a suite."""
    suite_spec = load_suite(suite)
    return Plan(
        pair=pair,
        methods=(spec,),
        baseline=None,
        suite=suite_spec.name,
        tasks=resolve_tasks(suite_spec, pair, data_dir),
        limit=documents,
        max_length=suite_spec.max_length,
        chat_template=suite_spec.chat_template,
        data_dir=data_dir,
        seed=seed,
    )
