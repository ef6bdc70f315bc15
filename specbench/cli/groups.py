"""Options that go together: each group is a dataclass whose fields a command takes as separate options."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from specbench import config
from specbench.cli.options import (
    AllowCodeExecution,
    AllowEntryPoint,
    AllowLeak,
    AllowPickle,
    ConstrainDraft,
    DataDir,
    Device,
    Draft,
    DraftDevice,
    Dtype,
    FetchModels,
    Frequency,
    GpusPerWorker,
    IgnoreEos,
    Lark,
    Limit,
    MaxNewTokens,
    MinP,
    Pair,
    Presence,
    PromptFile,
    PromptSuite,
    Ray,
    Regex,
    Repeats,
    Repetition,
    Runtime,
    Schema,
    SchemaField,
    Seed,
    Set,
    Split,
    Target,
    TaskOption,
    Temperature,
    TopK,
    TopP,
    TrajectoryFile,
    TrustRemoteCode,
    Untimed,
    Weights,
    Workers,
    known,
)
from specbench.config import PairSpec, UserError
from specbench.permissions import permitted

if TYPE_CHECKING:
    from specbench.measure.staffing import Staffing


def chosen_pair(pair: str, target: str | None, draft: str | None, usual: str = "pocket") -> str | PairSpec:
    """The pair that --pair names, or --target with or without --draft. Raises UserError if both do."""
    if target is None:
        if draft is not None:
            raise UserError("--draft goes with --target: --target DIR_OR_NAME --draft DIR_OR_NAME")
        return pair
    if pair != usual:
        raise UserError("--pair and --target both name models; give one of them")
    return config.own_pair(target, draft)


def fetching() -> AbstractContextManager[None]:
    """The permissions of a command that needs one only: to fetch the models that it names."""
    return permitted(fetch_models=True)


def folders_of(names: Sequence[str | None]) -> list[Path]:
    """The folders of the YAML files among names of suites and tasks."""
    return [Path(name).parent for name in names if name and name.endswith((".yaml", ".yml"))]


def folder(data_dir: Path | None) -> str | None:
    """A data folder as a plan records it."""
    return str(data_dir.resolve()) if data_dir else None


@dataclass(frozen=True)
class Models:
    """Options of the models."""

    pair: Pair = "pocket"
    target: Target = None
    draft: Draft = None
    weights: Weights = None
    draft_device: DraftDevice = None

    @property
    def chosen(self) -> str | PairSpec:
        """The pair that is named, with the weights and the draft's device that are asked for.

        Raises UserError if two are named.
        """
        pair = chosen_pair(self.pair, self.target, self.draft)
        pair = config.with_weights(pair, self.weights) if self.weights else pair
        return config.with_draft_device(pair, self.draft_device) if self.draft_device else pair

    def values(self) -> dict[str, Any]:
        """All options by name, with the chosen pair as `pair`. Raises UserError as `chosen`."""
        values = vars(self) | {"pair": self.chosen}
        of_pair = ("target", "draft", "weights", "draft_device")
        return {key: value for key, value in values.items() if key not in of_pair}


@dataclass(frozen=True)
class Documents:
    """Options of what texts are generated for."""

    suite: Annotated[str | None, Option(help="a suite by name, or a YAML file", autocompletion=known("suites"))] = None
    task: TaskOption = None
    task_dir: Annotated[
        Path | None, Option(help="folder of your own tasks, in lm-eval's form; without --task or a suite, all of them")
    ] = None
    prompts: PromptFile = None
    trajectories: TrajectoryFile = None
    max_new_tokens: MaxNewTokens = None

    @property
    def any(self) -> bool:
        """True if the command line says what to run; a folder of tasks may only permit what a run names."""
        return bool(self.suite or self.task or self.prompts or self.trajectories)

    @property
    def folders(self) -> list[Path]:
        """The folders whose tasks the command line names."""
        return [*([self.task_dir] if self.task_dir else []), *folders_of([self.suite, *(self.task or [])])]

    def of_plan(self) -> dict[str, Any]:
        """As arguments of `resolve_plan`."""
        return vars(self) | {"task": self.task or []}


@dataclass(frozen=True)
class Decoding(Models):
    """Options of what is decoded, and how."""

    limit: Limit = None
    split: Split = None
    repeats: Repeats = 1
    seed: Seed = 0
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    min_p: MinP = None
    repetition_penalty: Repetition = None
    presence_penalty: Presence = None
    frequency_penalty: Frequency = None
    ignore_eos: IgnoreEos = False
    schema: Schema = None
    schema_field: SchemaField = None
    regex: Regex = None
    lark: Lark = None
    constrain_draft: ConstrainDraft = False
    set_: Set = None

    def of_plan(self) -> dict[str, Any]:
        """As arguments of `resolve_plan`. Raises UserError for a constraint that cannot be read."""
        values = self.values()
        of_answers = ("schema", "schema_field", "regex", "lark", "constrain_draft")
        asked = {name: values.pop(name) for name in of_answers}
        if any(value not in (None, False) for value in asked.values()):
            from specbench.config.constraints import chosen

            values["constraint"] = chosen(**asked)
        return values | {"assignments": values.pop("set_") or []}


@dataclass(frozen=True)
class Prompts(Models):
    """Options of the prompts, for commands that make no run."""

    suite: PromptSuite = None
    task: TaskOption = None
    prompts: PromptFile = None
    set_: Set = None

    @property
    def folders(self) -> list[Path]:
        """The folders whose tasks the command line names."""
        return folders_of([self.suite, *(self.task or [])])

    def of_plan(self) -> dict[str, Any]:
        """As arguments of `resolve_plan`."""
        values = self.values()
        usual = (
            None if self.task or self.prompts else "pocket" if self.pair == "pocket" and not self.target else "smoke"
        )
        values |= {"suite": self.suite or usual, "task": self.task or []}
        return values | {"assignments": values.pop("set_") or []}


@dataclass(frozen=True)
class Draws(Prompts):
    """The same, with how texts are drawn."""

    temperature: Temperature = None
    seed: Seed = 0


@dataclass(frozen=True)
class Texts(Draws):
    """The same, where answers may be made shorter."""

    max_new_tokens: MaxNewTokens = None


@dataclass(frozen=True)
class Place:
    """Options of where it is computed, and from which data."""

    device: Device = "auto"
    dtype: Dtype = "auto"
    data_dir: DataDir = None

    def of_plan(self) -> dict[str, Any]:
        """As arguments of `resolve_plan`."""
        return vars(self) | {"data_dir": folder(self.data_dir)}


@dataclass(frozen=True)
class Machine(Place):
    """The same, with how forwards are computed."""

    runtime: Runtime = "auto"


@dataclass(frozen=True)
class Staffed:
    """Options of workers that share what a command does."""

    workers: Workers = None
    ray: Ray = None
    gpus_per_worker: GpusPerWorker = 1

    def staffing(self) -> "Staffing | None":
        """The workers; None for this process alone. Raises UserError for what only workers have."""
        if self.workers:
            from specbench.measure.staffing import Staffing

            return Staffing(self.workers, self.ray, self.gpus_per_worker)
        if self.ray:
            raise UserError("--ray needs --workers: how many of the cluster's nodes or GPUs decode")
        if self.gpus_per_worker > 1:
            raise UserError("--gpus-per-worker needs --workers; for one process over all GPUs: --device spread")
        return None


@dataclass(frozen=True)
class Pooled(Staffed):
    """The same, where times are taken."""

    untimed: Untimed = False


@dataclass(frozen=True)
class Allowed:
    """Options that let code run which specbench did not bring, or let a method be tested on what it was made from."""

    trust_remote_code: TrustRemoteCode = False
    allow_pickle: AllowPickle = False
    allow_code_execution: AllowCodeExecution = None
    allow_leak: AllowLeak = False
    allow_entry_point: AllowEntryPoint = None

    def of_plan(self) -> dict[str, Any]:
        """As arguments of `resolve_plan`."""
        return {"trust_remote_code": self.trust_remote_code, "allow_pickle": self.allow_pickle}

    def permitted(
        self,
        assignments: Sequence[str],
        fetch_models: bool,
        methods: Sequence[str] = (),
        task_folders: Sequence[Path] = (),
        keys: Sequence[str] = (),
    ) -> AbstractContextManager[None]:
        """The permissions in force within a command; see `permissions.permitted`."""
        return permitted(
            self.trust_remote_code,
            self.allow_pickle,
            self.allow_code_execution,
            self.allow_entry_point,
            assignments,
            self.allow_leak,
            fetch_models,
            methods,
            task_folders,
            keys,
        )


@dataclass(frozen=True)
class ReadAgain:
    """Options of analyses that load the models of a run and let them read its texts again."""

    trust_remote_code: TrustRemoteCode = False
    allow_pickle: AllowPickle = False
    fetch_models: FetchModels = False

    def permitted(self) -> AbstractContextManager[None]:
        """The permissions in force within a command."""
        return permitted(self.trust_remote_code, self.allow_pickle, fetch_models=self.fetch_models)


@dataclass(frozen=True)
class JudgedAgain(ReadAgain):
    """The same, where new answers are scored."""

    allow_code_execution: AllowCodeExecution = None

    def permitted(self) -> AbstractContextManager[None]:
        return permitted(
            self.trust_remote_code, self.allow_pickle, self.allow_code_execution, fetch_models=self.fetch_models
        )


@dataclass(frozen=True)
class DecodedAgain(ReadAgain):
    """The same, where the methods of a run decode again, those of installed packages too."""

    allow_entry_point: AllowEntryPoint = None

    def permitted(self) -> AbstractContextManager[None]:
        return permitted(
            self.trust_remote_code,
            self.allow_pickle,
            entry_points=self.allow_entry_point,
            fetch_models=self.fetch_models,
        )


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options: Typer sees each field of such a dataclass as a separate parameter."""
    parameters = inspect.signature(command).parameters.values()
    groups: dict[str, Any] = {p.name: p.annotation for p in parameters if is_dataclass(p.annotation)}

    @wraps(command)
    def with_single_options(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    expanded = [
        single.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in parameters
        for single in (
            inspect.signature(groups[parameter.name]).parameters.values() if parameter.name in groups else [parameter]
        )
    ]
    with_single_options.__signature__ = inspect.Signature(expanded)  # type: ignore[attr-defined]
    with_single_options.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
    return with_single_options
