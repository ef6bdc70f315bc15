"""What all analyses share, those of installed packages too: options, how findings are printed, their group."""

from collections.abc import Callable, Sequence
from enum import Enum
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option
from typer.core import TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from specbench.cli.options import Plain, Printed
from specbench.config import plugins

if TYPE_CHECKING:
    from specbench.report.finding import Finding

Run = Annotated[Path, Argument(help="a run folder")]
Method = Annotated[str | None, Option(help="a method of the run; default: the first, or all, that apply")]
PlainFormat = Annotated[Plain, Option(help="how to print it")]
PrintedFormat = Annotated[Printed, Option(help="how to print it")]


def show(
    findings: "Finding | Sequence[Finding]",
    format: Enum,
    cells: Callable[[], list[dict[str, Any]]] = list,
    out: Path | None = None,
) -> None:
    """Print the findings, and write the cells of a paper's table if there is a file for them."""
    from specbench.papers.cells import write_cells
    from specbench.report.finding import show

    show(findings, format.value)
    if out:
        write_cells(out, cells())


class Analyses(TyperGroup):
    """The analyses of specbench, and those that installed packages bring by entry points `specbench.analyses`.

    An entry point is a function like those of records.py. It is loaded where the command line names it. The extras' are
    loaded for a list, too.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(plugins.entries("analyses"))]

    def get_command(self, ctx: Any, name: str) -> Any:
        """One to list; that of a foreign package only says whose it is."""
        entry = plugins.entries("analyses").get(name)
        if entry is None or name in self.commands:
            return super().get_command(ctx, name)
        return made(entry, entry.load()) if plugins.of_extras(entry) else made(entry, lambda: None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        entry = plugins.entries("analyses").get(name or "")
        return name, made(entry, entry.load()) if entry and name not in self.commands else command, rest


def made(entry: EntryPoint, function: Callable[..., None]) -> Any:
    """The command of an entry point, which calls a function; one without a docstring has its package for help."""
    info = CommandInfo(name=entry.name, callback=function, help=function.__doc__ or f"Of {plugins.package(entry)}.")
    return get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode="markdown")
