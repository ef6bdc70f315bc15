"""The plan of a run: all that decides what it does, resolved from a pair, a suite, methods and options."""

from pydantic import Field, field_validator

from specbench.config import (
    RUNTIMES,
    MethodSpec,
    PairSpec,
    SamplingSpec,
    Settings,
    SuiteSpec,
    TaskLine,
    load_suite,
    task_info,
)


class Plan(Settings):
    """All that decides what a run does; a run can be repeated from it, and is resumed only under the same one."""

    pair: PairSpec
    methods: tuple[MethodSpec, ...]  # the baseline is one of them
    baseline: str | None
    baselines: dict[str, str] = Field(default={}, description="of the methods that have another one")
    suite: str
    tasks: tuple[TaskLine, ...]
    limit: int | None = None
    max_length: int | None = None
    split: str | None = Field(default=None, description="other documents than those that the tasks evaluate")
    repeats: int = Field(default=1, ge=1)
    seed: int = 0
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    device: str = "auto"
    dtype: str = "auto"
    runtime: str = "eager"
    share_prefix: bool = Field(default=True, description="read once what the prompts of a task begin with alike")
    data_dir: str | None = None
    chat_template: bool = False
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

    @property
    def sampling(self) -> SamplingSpec:
        return SamplingSpec(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)


def resolve_tasks(suite: SuiteSpec, pair: PairSpec, data_dir: str | None) -> tuple[TaskLine, ...]:
    """The suite's tasks, or for a bundled pair their bundled counterparts, unless real data was given.

    No task comes twice. A line that has one counterpart decides how that is run; a mixture brings the rest of its own.
    """
    if not pair.bundled or data_dir:
        return suite.tasks
    places = [(line, task_info(line.task).counterparts or (line.task,)) for line in suite.tasks]
    own: dict[str, TaskLine] = {}
    for line, (name, *others) in places:
        if not others:
            own.setdefault(name, line)
    lines = {name: own.get(name, line).model_copy(update={"task": name}) for line, names in places for name in names}
    return tuple(lines.values())


def preparing(pair: PairSpec, suite: str, spec: MethodSpec, documents: int, seed: int, data_dir: str | None) -> Plan:
    """A plan for what is learned before a run: one method, and so many documents of each task of a suite."""
    suite_spec = load_suite(suite)
    return Plan(
        pair=pair,
        methods=(spec,),
        baseline=None,
        suite=suite_spec.name,
        tasks=resolve_tasks(suite_spec, pair, data_dir),
        limit=documents,
        max_length=suite_spec.max_length,
        data_dir=data_dir,
        seed=seed,
    )
