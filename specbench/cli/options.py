"""The options that several commands share: their types and help, and completion from the names in suites/."""

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from specbench import config
from specbench.base.environment import MISMATCHES as FIELDS
from specbench.permissions import UNSAFE

Format = Enum(
    "Format",
    {"table": "table", "csv": "csv", "md": "md", "latex": "latex", "json": "json", "parquet": "parquet"},
    type=str,
)
Plain = Enum("Plain", {"table": "table", "csv": "csv", "json": "json"}, type=str)  # of all but tables of methods
Printed = Enum("Printed", {"table": "table", "md": "md", "csv": "csv", "json": "json"}, type=str)
By = Enum("By", {"task": "task", "method": "method", "pair": "pair", "depth": "depth", "worker": "worker"}, type=str)


def known(kind: str) -> Callable[[str], list[str]]:
    """Tab completion from the names in suites/."""
    return lambda incomplete: [name for name in config.names(kind) if name.startswith(incomplete)]


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
Set = Annotated[list[str] | None, Option("--set", metavar="METHOD.KEY=VALUE", help="change a method's setting")]
Device = Annotated[str, Option(help="auto, cpu, cuda, cuda:1, or spread (the target over all GPUs)")]
DraftDevice = Annotated[
    str | None, Option(help="where draft models and heads are: cpu, cuda or cuda:1; default: with the target")
]
Dtype = Annotated[str, Option(help="auto (float32 on a CPU, the pair's own on a GPU), float64, bfloat16, …")]
Runtime = Annotated[
    str,
    Option(
        help="how forwards are computed: eager (transformers' own), static, graph (a GPU), openvino (a CPU), llamacpp "
        "(a GGUF file), or auto: static on a CPU, graph on a GPU, eager for models that these do not know",
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
IgnoreEos = Annotated[
    bool,
    Option("--ignore-eos", help="go on after end tokens, up to the limit of new tokens"),
]
Schema = Annotated[
    Path | None,
    Option(metavar="FILE.json", help="let every answer be JSON under this schema; needs the extra `grammar`"),
]
SchemaField = Annotated[
    str | None, Option(metavar="FIELD", help="the same, by the schema that each document has in this field")
]
Regex = Annotated[
    str | None, Option(metavar="PATTERN", help="let every answer match this regular expression as a whole")
]
Lark = Annotated[Path | None, Option(metavar="FILE.lark", help="let every answer follow this grammar in Lark's form")]
ConstrainDraft = Annotated[
    bool,
    Option("--constrain-draft", help="constrain draft models, too: the texts stay the same, acceptance may rise"),
]
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


class CodeExecution(str, Enum):
    """Values of --allow-code-execution; without one it is `yes`."""

    yes = "yes"
    unsafe = UNSAFE


AllowCodeExecution = Annotated[
    CodeExecution | None,
    Option(
        "--allow-code-execution",
        metavar=f"[={UNSAFE}]",
        help="run programs that models wrote, to score them, and the code of your own task files; the bundled pair on "
        f"bundled tasks needs it only if programs cannot be isolated; with ={UNSAFE}, programs may run as root where "
        "they cannot run as nobody",
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
        help="run the workers on this Ray cluster, or start one on this machine; anyone who reaches a cluster can run "
        "code on it",
    ),
]
GpusPerWorker = Annotated[
    int, Option(min=1, help="GPUs for each worker; its target is spread over them, layer by layer")
]
Untimed = Annotated[bool, Option("--untimed", help="record no times; needed if workers share a device")]
Server = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=URL",
        help="measure a server with OpenAI's completions API as a method, or the servers in a YAML file",
    ),
]
AllowKey = Annotated[
    list[str] | None,
    Option(
        metavar="VARIABLE",
        help="with --resume: send the API key in this environment variable to the server that the run names for it",
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
CellsOut = Annotated[Path | None, Option(help="CSV file to write, for `specbench tables`")]
PromptSuite = Annotated[
    str | None,
    Option(
        help="the suite with the prompts; default: pocket for --pair pocket, otherwise smoke",
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
TrajectoryFile = Annotated[
    Path | None,
    Option(
        metavar="FILE.jsonl",
        help="instead of a suite: recorded conversations, one on each line; every answer is decoded again after what "
        "was recorded before it",
    ),
]
MaxNewTokens = Annotated[int | None, Option(min=1, help="the most tokens of an answer; default: the task's")]
# Without a value, the suite's is taken.
Temperature = Annotated[float | None, Option(help="0 is greedy; default: the suite's, which is 0 for most")]
TopP = Annotated[float | None, Option(help="1 is off; default: the suite's, which is 1 for most")]
TopK = Annotated[int | None, Option(help="0 is off; default: the suite's, which is 0 for most")]
MinP = Annotated[float | None, Option(help="least share of the likeliest token's probability; 0 is off")]
Repetition = Annotated[
    float | None, Option(metavar="FACTOR", help="divide the logits of tokens of prompt and answer; 1 is off")
]
Presence = Annotated[float | None, Option(metavar="AMOUNT", help="take it off the logits of the answer's tokens")]
Frequency = Annotated[
    float | None, Option(metavar="AMOUNT", help="the same, as often as a token is in the answer; 0 is off")
]
