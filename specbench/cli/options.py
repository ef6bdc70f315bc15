"""What several commands share: options, completion, and errors that become one line."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from specbench import config
from specbench.config import UserError
from specbench.console import PlainConsole, plain


class Format(str, Enum):
    table = "table"
    csv = "csv"
    md = "md"
    latex = "latex"
    json = "json"
    parquet = "parquet"


class Plain(str, Enum):
    """Formats of what is no table of methods."""

    table = "table"
    csv = "csv"
    json = "json"


class By(str, Enum):
    task = "task"
    method = "method"
    pair = "pair"
    depth = "depth"


def known(kind: str) -> Callable[[str], list[str]]:
    """Tab completion from the names in suites/."""
    return lambda incomplete: [name for name in config.names(kind) if name.startswith(incomplete)]


@contextmanager
def user_errors() -> Iterator[None]:
    """What the user can mend becomes one line and exit code 2. Garbage is collected from here on: imports are done."""
    gc.freeze()
    gc.enable()
    try:
        yield
    except (UserError, OSError) as error:
        errors = PlainConsole(stderr=True, soft_wrap=True, highlight=False)
        errors.print(Text.assemble(("error:", "red"), f" {plain(str(error))}"))
        raise typer.Exit(2) from None


Pair = Annotated[
    str,
    typer.Option(
        help="a pair by name, a YAML file, or target=NAME_OR_PATH,draft=NAME_OR_PATH", autocompletion=known("pairs")
    ),
]
Suite = Annotated[str, typer.Option(help="a suite by name, or a YAML file", autocompletion=known("suites"))]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="METHOD.KEY=VALUE", help="change a method's setting")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, or spread (the target over all GPUs)")]
Dtype = Annotated[str, typer.Option(help="auto (float32 on a CPU, the pair's own on a GPU), float64, bfloat16, …")]
Runtime = Annotated[
    str,
    typer.Option(
        help="how forwards are computed: eager (transformers' own), static, graph (a GPU), openvino (a CPU) or auto",
        autocompletion=lambda incomplete: [name for name in config.RUNTIMES if name.startswith(incomplete)],
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(help="folder of DATA_SPLIT.jsonl files that stand in for the hub's data sets")
]
Runs = Annotated[list[Path], typer.Argument(help="run folders", show_default=False)]
AllowMismatch = Annotated[
    list[str] | None, typer.Option(metavar="FIELD", help="compare runs that differ in this; the caption says so")
]
FormatOption = Annotated[Format, typer.Option(help="how to print the table")]
Limit = Annotated[int | None, typer.Option(min=1, help="documents of each task; default: all")]
Split = Annotated[
    str | None, typer.Option(help="other documents than those that the tasks evaluate, such as validation")
]
Repeats = Annotated[int, typer.Option(min=1, help="how often to decode every document")]
Seed = Annotated[int, typer.Option(help="of sampling, shuffling and few-shot examples")]
TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="let models bring their own code; of a run that was begun so: again"),
]
AllowPickle = Annotated[
    bool,
    typer.Option("--allow-pickle", help="load weights that are not safetensors; of a run that was begun so: again"),
]
AllowCodeExecution = Annotated[
    bool,
    typer.Option(
        "--allow-code-execution",
        help="score tasks by running the programs that models wrote; the bundled pair on bundled tasks needs it only "
        "where they cannot be isolated",
    ),
]
AllowEntryPoint = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="import this function (or FILE.py:FUNCTION), which a YAML file or a run names; --set names and allows one",
    ),
]
RunOut = Annotated[Path | None, typer.Option(help="run folder to make; default: a new one in runs/")]


def folder(data_dir: Path | None) -> str | None:
    """A data folder as a run remembers it."""
    return str(data_dir.resolve()) if data_dir else None
