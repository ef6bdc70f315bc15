"""The command line: which function carries each command out. A command's module is imported when it is called."""

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, version
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from specbench.base.console import flush, leave_closed_pipe, say, stdout_file

# By panel of `specbench --help`, by command: the module in this package, and the function in it.
PANELS = {
    "Measure": {
        "run": "measure.run",
        "join": "measure.join",
        "sweep": "measure.sweep",
        "score": "score.score",
        "throughput": "serving.throughput",
        "load": "serving.load",
    },
    "Read": {
        "show": "read.show",
        "compare": "read.compare",
        "tables": "read.tables",
        "plot": "read.plot",
        "report": "read.report",
        "trace": "read.trace",
        "list": "read.list_",
        "analyze": "analyze.group",
    },
    "Project": {
        "profile": "project.profile",
        "simulate": "project.simulate",
        "plan": "needed.plan",
    },
    "Prepare": {
        "new": "new.new",
        "calibrate": "prepare.calibrate",
        "train": "prepare.train",
        "merge": "prepare.merge",
        "import": "prepare.import_",
    },
    "Check": {"doctor": "check.doctor", "audit": "check.audit"},
}
EXTRAS = "Extras"  # the panel of what packages bring
PANEL_OF = {name: panel for panel, commands in PANELS.items() for name in commands}


def function(name: str) -> Callable[..., None] | typer.Typer:
    """What carries out a command, or the Typer application of a group of commands."""
    module, attribute = PANELS[PANEL_OF[name]][name].split(".")
    found: Callable[..., None] | typer.Typer = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found


def panels() -> dict[str, list[Callable[..., None]]]:
    """By panel the functions of its commands, those of the extras too; groups of commands are left out."""
    from specbench.config import plugins

    own = {
        panel: [found for name in commands if not isinstance(found := function(name), typer.Typer)]
        for panel, commands in PANELS.items()
    }
    return own | {EXTRAS: [entry.load() for entry in plugins.extras("commands").values()]}


class LazyCommands(Mapping[str, Any]):
    """The commands of PANELS by name; a look at one imports its module."""

    def __iter__(self) -> Iterator[str]:
        return iter(PANEL_OF)

    def __len__(self) -> int:
        return len(PANEL_OF)

    def __getitem__(self, name: str) -> Any:
        found, panel = function(name), PANEL_OF[name]
        if isinstance(found, typer.Typer):
            command: Any = typer.main.get_command(found)
            command.name, command.rich_help_panel = name, panel
            return command
        info = CommandInfo(name=name, callback=found, rich_help_panel=panel)
        return get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode="markdown")


def with_values(words: Iterable[str]) -> list[str]:
    """The words of a command line, of which options whose value may be left out have one."""
    left_out = {"--allow-code-execution": "--allow-code-execution=yes"}
    return [left_out.get(word, word) for word in words]


class Brought(TyperGroup):
    """A group of commands, and those of the entry points `specbench.ENTRIES`.

    An entry point is a function as Typer takes it. It is loaded where the command line names it. The extras' are loaded
    for a list, too.
    """

    entries = ""
    panel: str | None = None  # of the help, for what packages bring

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(name for name in self.found() if name not in self.commands)]

    def get_command(self, ctx: Any, name: str) -> Any:
        """One to list; that of a foreign package only says whose it is."""
        if name in self.commands:
            return super().get_command(ctx, name)
        from specbench.config import plugins

        if (entry := self.found().get(name)) is None:
            if plugins.more() and not ctx.resilient_parsing:  # as while a shell completes
                ctx.fail(f"No such command {name!r}{plugins.more()}")
            return None
        return self.made(entry, entry.load() if plugins.of_extras(entry) else lambda: None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or name in self.commands:
            return name, command, rest
        entry = self.found()[name]
        return name, self.made(entry, entry.load()), rest

    def found(self) -> dict[str, EntryPoint]:
        """The entry points by name."""
        from specbench.config import plugins

        return plugins.entries(self.entries)  # type: ignore[arg-type]

    def made(self, entry: EntryPoint, function: Callable[..., None]) -> Any:
        """The command of an entry point, which calls a function; one without a docstring has its package for help."""
        from specbench.config import plugins

        words = function.__doc__ or f"Of {plugins.package(entry)}."
        info = CommandInfo(name=entry.name, callback=function, help=words, rich_help_panel=self.panel)
        return get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode="markdown")


class Commands(Brought):
    """A list of the commands imports all their modules, a call the module of one."""

    entries, panel = "commands", EXTRAS

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": LazyCommands()})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_values(args))


app = typer.Typer(
    name="specbench",
    cls=Commands,
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
