"""The commands. No logic here, and no heavy import outside a command: help and lists must answer at once."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specbench import config
from specbench.config import UserError
from specbench.console import console

MEASURE, READ, PREPARE, CHECK = "Measure", "Read", "Prepare", "Check"

app = typer.Typer(
    name="specbench",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    help="Measure speculative decoding: every method on one engine, accuracy and speed from the same generations.",
)


class Kind(str, Enum):
    pairs = "pairs"
    methods = "methods"
    suites = "suites"
    tasks = "tasks"


class Format(str, Enum):
    table = "table"
    csv = "csv"
    md = "md"
    latex = "latex"
    json = "json"
    parquet = "parquet"


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
    """What the user can mend becomes one line and exit code 2."""
    try:
        yield
    except UserError as error:
        errors = Console(stderr=True, soft_wrap=True, highlight=False)
        errors.print(f"[red]error:[/] {escape(str(error))}")
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
DataDir = Annotated[
    Path | None, typer.Option(help="folder of <data>_<split>.jsonl files that stand in for the hub's data sets")
]
Runs = Annotated[list[Path], typer.Argument(help="run folders", show_default=False)]
FormatOption = Annotated[Format, typer.Option(help="how to print the table")]


@app.command(rich_help_panel=MEASURE)
def run(
    context: typer.Context,
    method: Annotated[
        list[str] | None,
        typer.Option(help="a method by name, or a YAML file; may be repeated", autocompletion=known("methods")),
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="a suite by name, or a YAML file", autocompletion=known("suites"))
    ] = None,
    pair: Pair = "pocket",
    limit: Annotated[int | None, typer.Option(min=1, help="documents of each task; default: all")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="how often to decode every document")] = 1,
    seed: Annotated[int, typer.Option(help="of sampling, shuffling and few-shot examples")] = 0,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0,
    top_p: Annotated[float, typer.Option(help="1 is off")] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 is off")] = 0,
    set_: Set = None,
    baseline: Annotated[str, typer.Option(help="the method that speedups are against, or none")] = "vanilla",
    device: Device = "auto",
    dtype: Dtype = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="run folder to make; default: a new one in runs/")] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with an unfinished run")] = None,
    apply_chat_template: Annotated[bool, typer.Option(help="wrap prompts in the tokenizer's chat template")] = False,
    trust_remote_code: Annotated[bool, typer.Option(help="let a model bring its own code")] = False,
    allow_pickle: Annotated[bool, typer.Option(help="load weights that are not safetensors")] = False,
) -> None:
    """Decode a suite with one or more methods, time every forward, score the texts, and print a table.

    `specbench run --method csd --suite math`

    `specbench run --method sps --method csd --suite csd --set csd.gamma=4 --limit 20`

    `specbench run --resume runs/20260101-120000-math-csd`
    """
    from specbench import commands

    with user_errors():
        given = None
        if resume and not (method and suite) and (named := _given(context) - {"resume"}):
            raise UserError(f"--resume takes its settings from the run; leave out --{named.pop().replace('_', '-')}")
        if method and suite:
            given = commands.plan(
                methods=method,
                suite=suite,
                pair=pair,
                assignments=set_ or [],
                baseline=None if baseline == "none" else baseline,
                limit=limit,
                repeats=repeats,
                seed=seed,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                device=device,
                dtype=dtype,
                data_dir=str(data_dir.resolve()) if data_dir else None,
                chat_template=apply_chat_template,
                trust_remote_code=trust_remote_code,
                allow_pickle=allow_pickle,
            )
        elif not resume:
            raise UserError("run needs --method and --suite: specbench run --method csd --suite math")
        raise typer.Exit(commands.run(given, out, resume))


def _given(context: typer.Context) -> set[str]:
    """The options that stand on the command line, as opposed to defaults."""
    return {name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"}


@app.command(rich_help_panel=READ)
def show(run: Annotated[Path, typer.Argument(help="a run folder")], format: FormatOption = Format.table) -> None:
    """Print the table of one run again, from its files.

    `specbench show runs/20260101-120000-math-csd`
    """
    from specbench import reading

    with user_errors():
        reading.show(run, format.value)


@app.command(rich_help_panel=READ)
def compare(
    runs: Runs,
    format: FormatOption = Format.table,
    by: Annotated[By, typer.Option(help="what makes a block; depth: acceptance by draft position")] = By.task,
    sort: Annotated[str | None, typer.Option(help="a column, largest first; COLUMN:asc: smallest first")] = None,
    columns: Annotated[str | None, typer.Option(help="only these, such as accuracy,tau,speedup_decode")] = None,
    allow_mismatch: Annotated[
        list[str] | None, typer.Option(metavar="FIELD", help="compare runs that differ in this; the caption says so")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write to this file")] = None,
) -> None:
    """Put runs side by side, per task and on average, and say which differences are real.

    Runs of the same pair and method are pooled as repeats. Runs that differ in hardware, dtype, versions, documents or
    prompts are refused.

    `specbench compare runs/one runs/other --sort speedup_decode`

    `specbench compare runs/one --by depth`

    `specbench compare runs/one runs/other --allow-mismatch cpu --format latex --out table.tex`
    """
    from specbench import reading

    with user_errors():
        names = [name.strip() for name in columns.split(",")] if columns else []
        reading.compare(runs, format.value, by.value, sort, names, allow_mismatch or [], out)


@app.command("list", rich_help_panel=READ)
def list_(kind: Annotated[Kind | None, typer.Argument(help="only these")] = None) -> None:
    """What there is: pairs, methods, suites and tasks, with one line and the paper each.

    `specbench list methods`
    """
    with user_errors():
        for one in [kind] if kind else list(Kind):
            table = Table(title=one.value, title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
            table.add_column(style="bold", no_wrap=True)
            table.add_column()
            for name, line, paper in _catalogue(one):
                table.add_row(name, line + (f" [dim]· {escape(paper)}[/]" if paper else ""))
            console.print(table)


def _catalogue(kind: Kind) -> Iterator[tuple[str, str, str]]:
    if kind is Kind.tasks:
        for name, info in config.tasks().items():
            yield name, info.description, f"({info.counterpart} for pocket)" if info.counterpart else ""
        return
    load: Any = {Kind.pairs: config.load_pair, Kind.methods: config.load_method, Kind.suites: config.load_suite}[kind]
    for name in config.names(kind.value):
        spec = load(name)
        yield name, spec.description, spec.paper


@app.command(rich_help_panel=PREPARE)
def calibrate(
    suite: Suite,
    pair: Pair = "pocket",
    method: Annotated[str, typer.Option(help="csd, or a YAML file based on it")] = "csd",
    documents: Annotated[int, typer.Option(min=1, help="calibration documents of each task")] = 2000,
    temperature: Annotated[float, typer.Option(help="of the plain speculative sampling that is watched")] = 1.0,
    seed: Annotated[int, typer.Option(help="of sampling and of generated documents")] = 0,
    set_: Set = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="memory file to write; default: memory-PAIR-SUITE.parquet")] = None,
) -> None:
    """Fill CSD's correction memory from calibration documents (never test ones), by plain speculative sampling.

    `specbench calibrate --method csd --pair pocket --suite math --out math.parquet`

    `specbench run --method csd --suite math --set csd.memory=math.parquet`
    """
    from specbench import calibration

    with user_errors():
        calibration.calibrate(
            suite=suite,
            pair=pair,
            method=method,
            assignments=set_ or [],
            documents=documents,
            temperature=temperature,
            seed=seed,
            device=device,
            dtype=dtype,
            data_dir=data_dir,
            out=out,
        )


@app.command(rich_help_panel=CHECK)
def bench(
    pair: Pair = "pocket",
    documents: Annotated[int, typer.Option(min=2, help="documents of each bundled task")] = 10,
    gamma: Annotated[int, typer.Option(min=1, help="draft length")] = 4,
    device: Device = "auto",
    dtype: Dtype = "auto",
    out: Annotated[Path | None, typer.Option(help="also write the figures to this JSON file")] = None,
) -> None:
    """Compare this engine with transformers' own generation, in one process, interleaved; and weigh the instruments.

    `specbench bench --documents 20`
    """
    from specbench import bench as module

    with user_errors():
        raise typer.Exit(module.main(pair, documents, gamma, device, dtype, out))


def main() -> None:
    """The `specbench` command."""
    # Tokenizers warn about forks and hub lookups retry for minutes unless told otherwise.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(app())


if __name__ == "__main__":
    main()
