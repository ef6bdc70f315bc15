"""What several commands share: options and groups of them, completion, and errors that become one line."""

import gc
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.text import Text
from typer import Argument, Option

from specbench import config
from specbench.base.console import PlainConsole, leave_closed_pipe, plain, reader_has_gone
from specbench.base.environment import MISMATCHES as FIELDS
from specbench.config import PairSpec, UserError
from specbench.measure.staffing import Staffing
from specbench.permissions import permitted

Number = TypeVar("Number", int, float)
Format = Enum(
    "Format",
    {"table": "table", "csv": "csv", "md": "md", "latex": "latex", "json": "json", "parquet": "parquet"},
    type=str,
)
Plain = Enum("Plain", {"table": "table", "csv": "csv", "json": "json"}, type=str)  # of all but tables of methods
By = Enum("By", {"task": "task", "method": "method", "pair": "pair", "depth": "depth", "worker": "worker"}, type=str)


def known(kind: str) -> Callable[[str], list[str]]:
    """Tab completion from the names in suites/."""
    return lambda incomplete: [name for name in config.names(kind) if name.startswith(incomplete)]


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn errors that the user can mend into one line and exit code 2.

    From here on garbage is collected (`main` disabled that), as the imports are done.
    """
    gc.freeze()
    gc.enable()
    try:
        yield
    except (UserError, OSError) as error:
        if isinstance(error, BrokenPipeError) and reader_has_gone():
            leave_closed_pipe()
        errors = PlainConsole(stderr=True, soft_wrap=True, highlight=False)
        errors.print(Text.assemble(("error:", "red"), f" {plain(str(error))}"))
        raise typer.Exit(2) from None


Pair = Annotated[
    str,
    Option(
        help="a pair by name, a YAML file, or target=A,draft=B (folders or hub names)", autocompletion=known("pairs")
    ),
]
Target = Annotated[
    str | None, Option(metavar="DIR_OR_NAME", help="instead of --pair: the target, a model's folder or hub name")
]
Draft = Annotated[str | None, Option(metavar="DIR_OR_NAME", help="with --target: the draft, for methods that need one")]
Weights = Annotated[
    list[str] | None,
    Option(metavar="SCHEME", help="quantise on loading: int8, int4 or fp8 for all models, or draft=int4 for one"),
]
Suite = Annotated[str, Option(help="a suite by name, or a YAML file", autocompletion=known("suites"))]
Set = Annotated[list[str] | None, Option("--set", metavar="METHOD.KEY=VALUE", help="change a method's setting")]
Device = Annotated[str, Option(help="auto, cpu, cuda, cuda:1, or spread (the target over all GPUs)")]
Dtype = Annotated[str, Option(help="auto (float32 on a CPU, the pair's own on a GPU), float64, bfloat16, …")]
Runtime = Annotated[
    str,
    Option(
        help="how forwards are computed: eager (transformers' own), static, graph (a GPU), openvino (a CPU) or auto",
        autocompletion=lambda incomplete: [name for name in config.RUNTIMES if name.startswith(incomplete)],
    ),
]
DataDir = Annotated[Path | None, Option(help="folder of DATA_SPLIT.jsonl files that replace the hub's data sets")]
Runs = Annotated[list[Path], Argument(help="run folders", show_default=False)]
AllowMismatch = Annotated[
    list[str] | None,
    Option(metavar="FIELD", help=f"compare runs that differ in this; the caption says so. FIELD: {', '.join(FIELDS)}"),
]
FormatOption = Annotated[Format, Option(help="how to print the table")]
Limit = Annotated[int | None, Option(min=1, help="documents of each task; default: all")]
Split = Annotated[
    str | None, Option(help="decode this split of each task, such as validation, instead of the one that it evaluates")
]
Repeats = Annotated[int, Option(min=1, help="how many times to decode each document")]
Seed = Annotated[int, Option(help="for sampling, shuffling and few-shot examples")]
TrustRemoteCode = Annotated[
    bool,
    Option(
        "--trust-remote-code", help="let models run their own code; give it again for a run that was started with it"
    ),
]
AllowPickle = Annotated[
    bool,
    Option(
        "--allow-pickle", help="load weights that are not safetensors; give it again for a run that was started with it"
    ),
]
AllowCodeExecution = Annotated[
    bool,
    Option(
        "--allow-code-execution",
        help="run programs that models wrote, to score them, and the code of your own task files; the bundled pair on "
        "bundled tasks needs it only if programs cannot be isolated",
    ),
]
AllowLeak = Annotated[
    bool,
    typer.Option("--allow-leak", help="test a method on documents that its memory was made from; tables say so"),
]
FetchModels = Annotated[
    bool,
    Option(
        "--fetch-models",
        help="fetch from the hub the models and data sets that the run names and that are missing here",
    ),
]
AllowEntryPoint = Annotated[
    list[str] | None,
    Option(
        metavar="MODULE:FUNCTION",
        help="allow this code of yours (also FILE.py:FUNCTION, or a method's FILE.py), which a YAML or a run names; "
        "what --set and --method name needs no permission",
    ),
]
RunOut = Annotated[Path | None, Option(help="run folder to make; default: a new one in runs/")]
NoPrompts = Annotated[bool, Option("--no-prompts", help="do not keep prompts and reference answers in the run folder")]
RowsTogether = Annotated[
    int,
    Option("--batch", min=1, help="documents to decode together, which is quicker; speeds are then those of the batch"),
]
TimeDocuments = Annotated[
    int, Option(min=0, help="with --batch: decode the first N documents of each task alone, and take speeds from these")
]
ShardOption = Annotated[
    str | None,
    Option(metavar="K/N", help="decode part K of N of the run, in --out; `specbench join` makes one run of all parts"),
]
PlanShards = Annotated[
    int | None, Option(min=1, help="show how the run would be cut into N shards, and decode nothing")
]
Workers = Annotated[
    int | None,
    Option(min=1, help="processes that share the work, each on its own GPU; default: this process alone"),
]
Ray = Annotated[
    str | None,
    Option(
        metavar="ADDRESS|local",
        help="have the workers on this Ray cluster, or on one that is started here; whoever reaches a cluster can run "
        "code on it",
    ),
]
GpusPerWorker = Annotated[
    int, Option(min=1, help="GPUs of each worker; over several of them its target is spread, layer by layer")
]
Untimed = Annotated[bool, Option("--untimed", help="record no times; needed if workers share a device")]
Server = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=URL",
        help="measure a server with OpenAI's completions API as a method, or the servers in a YAML file",
    ),
]
Concurrency = Annotated[int, Option(min=1, help="with --server: requests under way at the same time")]
Rate = Annotated[
    float | None, Option(help="with --server, instead of --concurrency: requests a second, sent at scheduled times")
]
ArrivalTimes = Annotated[
    str | None,
    Option("--arrivals", help="with --rate: poisson (default), constant, or a file of arrival times in seconds"),
]
CellsOut = Annotated[Path | None, Option(help="a CSV file for `specbench tables`")]
PromptSuite = Annotated[
    str | None,
    Option(
        help="the suite with the prompts; default: pocket for the bundled pair, otherwise smoke",
        autocompletion=known("suites"),
    ),
]
TaskOption = Annotated[
    list[str] | None,
    Option(
        help="instead of a suite: a task by name, or its YAML file; may be repeated",
        autocompletion=lambda incomplete: [name for name in config.tasks() if name.startswith(incomplete)],
    ),
]
PromptFile = Annotated[
    Path | None, Option(metavar="FILE.jsonl", help="instead of a suite: prompts that are not scored, one on each line")
]
MaxNewTokens = Annotated[int | None, Option(min=1, help="the most tokens of an answer; default: the task's")]
# Without a value, the suite's is taken.
Temperature = Annotated[float | None, Option(help="0 is greedy; default: the suite's, which is 0 for most")]
TopP = Annotated[float | None, Option(help="1 is off; default: the suite's, which is 1 for most")]
TopK = Annotated[int | None, Option(help="0 is off; default: the suite's, which is 0 for most")]


def numbers(option: str, text: str | None) -> list[float]:
    """`0.3,0.5` as numbers; none where the option is not given. Raises UserError for what is not a number."""
    return _split(option, text, float, "numbers")


def whole_numbers(option: str, text: str | None) -> list[int]:
    """`1,2,4` as whole numbers; none where the option is not given. Raises UserError for what is no whole number."""
    return _split(option, text, int, "whole numbers")


def _split(option: str, text: str | None, kind: Callable[[str], Number], words: str) -> list[Number]:
    values = []
    for part in text.split(",") if text is not None else []:
        try:
            values.append(kind(part))
        except ValueError:
            raise UserError(f"{option} {text}: write {words} with commas between them, not {part!r}") from None
    return values


def check_out(out: Path | None) -> None:
    """Raise UserError if the folder of a file to write does not exist."""
    if out and not out.absolute().parent.is_dir():
        raise UserError(f"there is no folder {out.parent}; make it, or choose another --out")


def check_names(pair: str | PairSpec | None = None, suite: str | None = None, method: str | None = None) -> None:
    """Raise UserError for a name that does not exist; commands call it before they import what takes seconds."""
    if pair is not None:
        config.load_pair(pair)
    if suite is not None:
        config.load_suite(suite)
    if method is not None:
        config.load_method(method)


def chosen_pair(pair: str, target: str | None, draft: str | None, usual: str = "pocket") -> str | PairSpec:
    """The pair that --pair names, or --target with or without --draft. Raises UserError if both do."""
    if target is None:
        if draft is not None:
            raise UserError("--draft goes with --target: --target DIR_OR_NAME --draft DIR_OR_NAME")
        return pair
    if pair != usual:
        raise UserError("--pair and --target both name models; give one of them")
    return config.own_pair(target, draft)


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

    @property
    def chosen(self) -> str | PairSpec:
        """The pair that is named, with the weights that are asked for. Raises UserError if two are named."""
        pair = chosen_pair(self.pair, self.target, self.draft)
        return config.with_weights(pair, self.weights) if self.weights else pair

    def values(self) -> dict[str, Any]:
        """All options by name, with the chosen pair as `pair`. Raises UserError as `chosen`."""
        values = vars(self) | {"pair": self.chosen}
        return {key: value for key, value in values.items() if key not in ("target", "draft", "weights")}


@dataclass(frozen=True)
class Documents:
    """Options of what texts are generated for."""

    suite: Annotated[str | None, Option(help="a suite by name, or a YAML file", autocompletion=known("suites"))] = None
    task: TaskOption = None
    task_dir: Annotated[
        Path | None, Option(help="folder of your own tasks, in lm-eval's form; without --task or a suite, all of them")
    ] = None
    prompts: PromptFile = None
    max_new_tokens: MaxNewTokens = None

    @property
    def any(self) -> bool:
        """True if the command line says what to run; a folder of tasks may only permit what a run names."""
        return bool(self.suite or self.task or self.prompts)

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
    set_: Set = None

    def of_plan(self) -> dict[str, Any]:
        """As arguments of `resolve_plan`."""
        values = self.values()
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

    runtime: Runtime = "eager"


@dataclass(frozen=True)
class Staffed:
    """Options of workers that share what a command does."""

    workers: Workers = None
    ray: Ray = None
    gpus_per_worker: GpusPerWorker = 1

    def staffing(self) -> Staffing | None:
        """The workers; None for this process alone. Raises UserError for what only workers have."""
        if self.workers:
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
    allow_code_execution: AllowCodeExecution = False
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
