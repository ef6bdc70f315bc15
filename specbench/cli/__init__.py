"""The commands: their options and help, and which function carries each one out.

Nothing heavy is imported outside a command, so that help and lists answer at once.
"""

import gc
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer
from typer import Option

from specbench.base.console import flush, leave_closed_pipe, say, stdout_file
from specbench.cli import (
    analyze,
    check,
    datastore,
    measure,
    needed,
    new,
    prepare,
    project,
    read,
    recipes,
    replay,
    score,
    serving,
)

PANELS = {
    "Measure": (measure.run, measure.join, measure.sweep, score.score, serving.throughput, serving.load),
    "Read": (
        read.show,
        read.compare,
        read.tables,
        read.plot,
        read.report,
        read.trace,
        serving.serving,
        read.list_,
    ),
    "Project": (project.profile, project.simulate, replay.replay, needed.plan),
    "Prepare": (
        new.new,
        prepare.calibrate,
        prepare.train,
        datastore.build_datastore,
        prepare.merge,
        prepare.import_,
        recipes.serve_recipe,
    ),
    "Check": (check.doctor, check.audit, check.bench),
}

app = typer.Typer(
    name="specbench",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    help="Measure speculative decoding: every method on one engine, accuracy and speed from the same generations.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"specbench {version('specbench-harness')}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...


for panel, commands in PANELS.items():
    for command in commands:
        app.command(command.__name__.rstrip("_").replace("_", "-"), rich_help_panel=panel)(command)

group = typer.Typer(cls=analyze.Analyses, no_args_is_help=True, rich_markup_mode="markdown", help=analyze.HELP)
for command in analyze.ANALYSES:
    group.command(command.__name__.replace("_", "-"))(command)
app.add_typer(group, name="analyze", rich_help_panel="Read")


def main() -> None:
    """The `specbench` command."""
    # Otherwise tokenizers warn about forks.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (it was closed, as by >&-)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    gc.disable()  # until the imports of a command are done (`user_errors` enables it): they take a quarter less time
    stdout = sys.stdout, stdout_file()
    try:
        app()
    except SystemExit as end:
        # Typer or rich met a closed pipe, and say so by a 1.
        if end.code == 1 and (sys.stdout, stdout_file()) != stdout:
            leave_closed_pipe()
        raise
    finally:
        flush()  # where a closed pipe is met at the latest
