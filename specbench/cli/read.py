"""Commands that read runs, and `list`."""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from specbench import config
from specbench.base.console import console, say
from specbench.cli.errors import user_errors
from specbench.cli.groups import Machine, Pooled, with_groups
from specbench.cli.options import (
    AllowCodeExecution,
    AllowMismatch,
    By,
    FetchModels,
    Format,
    FormatOption,
    Limit,
    Pair,
    RowsTogether,
    Runs,
    Seed,
    TimeDocuments,
    TrustRemoteCode,
    known,
)
from specbench.config import own_methods, plugins
from specbench.config.specs import ENTRY
from specbench.engine.models import architectures
from specbench.permissions import permitted
from specbench.report.plots.listed import KINDS


class Listed(str, Enum):
    """What `list` lists."""

    pairs = "pairs"
    methods = "methods"
    suites = "suites"
    tasks = "tasks"
    architectures = "architectures"


Plot = Enum("Plot", {name.replace("-", "_"): name for name in KINDS}, type=str)  # type: ignore[misc]


def show(run: Annotated[Path, Argument(help="a run folder")], format: FormatOption = Format.table) -> None:
    """Print the table of one run again, from its files.

    `specbench show runs/20260101-120000-math-csd`
    """
    from specbench.report import comparison

    with user_errors():
        comparison.show(run, format.value)


def compare(
    runs: Runs,
    format: FormatOption = Format.table,
    by: Annotated[
        By, Option(help="how rows are grouped; depth: acceptance by draft position; worker: speeds of each worker")
    ] = By.task,
    sort: Annotated[str | None, Option(help="a column: largest first; COLUMN:asc: smallest first")] = None,
    columns: Annotated[
        str | None, Option(help="only these, such as accuracy,tau,speedup_decode; +NAME adds one to the usual ones")
    ] = None,
    limit_share: Annotated[
        bool,
        Option(
            "--limit-share",
            help="add a column: the share of decode time that moving weights and caches through memory needs",
        ),
    ] = False,
    against: Annotated[
        str | None, Option(help="the baseline of all methods; default: the baselines of the runs")
    ] = None,
    allow_mismatch: AllowMismatch = None,
    out: Annotated[Path | None, Option(help="write to this file")] = None,
) -> None:
    """Put runs side by side, per task and on average, and say which differences are significant.

    Runs of the same pair and method are pooled as repeats. Runs that differ in hardware, versions, dtype, runtime,
    models, documents or prompts are refused, unless allowed. The column acceptance_rate_in_text leaves out drafts after
    the end of a text.

    `specbench compare runs/one runs/other --sort speedup_decode`

    `specbench compare runs/one --by depth`

    `specbench compare runs/joined --by worker`

    `specbench compare runs/one --columns +acceptance_rate_in_text`

    `specbench compare runs/one --limit-share`

    `specbench compare runs/one --against csd`

    `specbench compare runs/one runs/other --allow-mismatch cpu --format latex --out table.tex`
    """
    from specbench.report import comparison

    with user_errors():
        names = [name.strip() for name in columns.split(",")] if columns else []
        names += ["+limit_share"] * limit_share
        comparison.compare(runs, format.value, by.value, sort, names, allow_mismatch or [], out, against)


@with_groups
def tables(
    runs: Annotated[
        list[Path] | None,
        Argument(help="run folders, or a folder of tables and runs to add; default: runs/tables/, which is completed"),
    ] = None,
    *,
    paper: Annotated[list[str] | None, Option(help="csd, specdecpp, cos or cospec; may be repeated")] = None,
    check: Annotated[bool, Option("--check", help="say which claims of the papers hold")] = False,
    pair: Pair = "pocket",
    suite: Annotated[
        str | None, Option(help="default: the suites that the tables need", autocompletion=known("suites"))
    ] = None,
    limit: Limit = None,
    repeats: Annotated[int, Option(min=1, help="how many times to decode each document at T > 0")] = 1,
    seed: Seed = 0,
    machine: Machine,
    batch: RowsTogether = 1,
    time_documents: TimeDocuments = 0,
    allow_mismatch: AllowMismatch = None,
    out: Annotated[Path, Option(help="folder for the tables")] = Path("results/tables"),
    allow_code_execution: AllowCodeExecution = None,
    pooled: Pooled,
) -> None:
    """Write the papers' tables with our own figures next to them; missing runs are made first.

    Given a folder of tables, it writes tables and verdicts again from the documents stored there. Runs after it are
    added to these; a run takes the place of a stored one of its name.

    `specbench tables --paper csd --check`

    `specbench tables --batch 16 --time-documents 40 --check`

    `specbench tables --workers 2 --gpus-per-worker 4`

    `specbench tables runs/one runs/other --out tables`

    `specbench tables results/tables --check`

    `specbench tables results/tables runs/new --out results/tables`
    """
    from specbench.papers import reproduce

    with user_errors(), permitted(allow_code_execution=allow_code_execution, fetch_models=True):
        options = {"repeats": repeats, "seed": seed, "batch": batch, "time_documents": time_documents}
        options |= machine.of_plan() | {"untimed": pooled.untimed}
        allowed, staffing = allow_mismatch or [], pooled.staffing()
        raise typer.Exit(
            reproduce.tables(runs or [], paper, pair, suite, limit, check, out, allowed, staffing, **options)
        )


def plot(
    kind: Annotated[Plot, Argument(help="what to draw")],
    runs: Runs,
    out: Annotated[Path | None, Option(help="FILE.svg, .png or .pdf; default: KIND.svg here")] = None,
    allow_mismatch: AllowMismatch = None,
) -> None:
    """Draw runs: speed against accuracy, acceptance by depth, where time goes, and more.

    {kinds}

    `specbench plot speed-accuracy runs/one runs/other --out plot.pdf`

    `specbench plot sweep runs/20260101-120000-math-csd`
    """
    from specbench.report.plots import kinds

    with user_errors():
        say(f"written: {kinds.plot(kind.value, runs, out, allow_mismatch or [])}")


plot.__doc__ = (plot.__doc__ or "").format(kinds="\n\n    ".join(f"{name}: {k.shows}." for name, k in KINDS.items()))


def report(
    runs: Runs,
    out: Annotated[Path, Option(help="the page to write")] = Path("report.html"),
    allow_mismatch: AllowMismatch = None,
    trust_remote_code: TrustRemoteCode = False,
    fetch_models: FetchModels = False,
) -> None:
    """Write one page that opens without a network: warnings, table, plots, settings, and every text token by token.

    `specbench report runs/one runs/other --out report.html`
    """
    from specbench.report import comparison

    with user_errors(), permitted(trust_remote_code, fetch_models=fetch_models):
        comparison.report(runs, out, allow_mismatch or [])


def trace(
    run: Annotated[Path, Argument(help="a run folder")],
    task: Annotated[str, Option(help="the task's name, as in the table")],
    doc: Annotated[int, Option(help="the document's number")],
    method: Annotated[
        list[str] | None, Option(help="a method of the run; twice: side by side. Default: the first that drafts")
    ] = None,
    color: Annotated[bool, Option(help="use colours; --no-color uses marks instead")] = True,
    trust_remote_code: TrustRemoteCode = False,
    fetch_models: FetchModels = False,
) -> None:
    """Print one text with the origin of each token (accepted, rescued, correction, bonus) and what was rejected.

    `specbench trace runs/one --task pocket_gsm8k --doc 3 --method csd`

    `specbench trace runs/one --task pocket_gsm8k --doc 3 --method vanilla --method csd`
    """
    from specbench.report import comparison

    with user_errors(), permitted(trust_remote_code, fetch_models=fetch_models):
        console.no_color = console.no_color or not color
        comparison.trace(run, task, doc, method or [])


def list_(kind: Annotated[Listed | None, Argument(help="list only these")] = None) -> None:
    """List pairs, methods, suites and tasks, each with a description and its paper.

    `specbench list methods`

    The list of architectures says which methods gave vanilla's text on a tiny model of each:

    `specbench list architectures`
    """
    with user_errors():
        for shown in [kind] if kind else [each for each in Listed if each is not Listed.architectures]:
            table = Table(title=_title(shown), title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
            table.add_column(style="bold", no_wrap=True)
            table.add_column()
            for name, line, paper in _catalogue(shown):
                table.add_row(name, Text.assemble(line, (f" · {paper}" if paper else "", "dim")))
            console.print(table)


def _title(kind: Listed) -> str:
    return f"architectures, tried with {architectures.version()}" if kind is Listed.architectures else kind.value


def _catalogue(kind: Listed) -> Iterator[tuple[str, str, str]]:
    if kind is Listed.tasks:
        for name, info in config.tasks().items():
            yield name, info.description, f"({', '.join(info.counterparts)} for pocket)" if info.counterpart else ""
        return
    if kind is Listed.architectures:
        yield from ((name, line, "") for name, line in architectures.described())
        return
    load: Any = {Listed.pairs: config.load_pair, Listed.methods: config.load_method, Listed.suites: config.load_suite}[
        kind
    ]
    extras = plugins.extras("methods") if kind is Listed.methods else ()
    for name in config.names(kind.value):
        spec = load(name)
        yield name, spec.description, " · ".join(filter(None, (spec.paper, "extras" * (name in extras))))
    if kind is Listed.methods:
        for name in sorted(own_methods.entries().keys() - set(config.names("methods"))):
            yield name, config.load_method(f"{ENTRY}{name}").description, ""
