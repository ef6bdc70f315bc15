"""Commands that installed packages bring, by entry points: of `specbench`, and of its group `analyze`."""

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo


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
        if name in self.commands or (entry := self.found().get(name)) is None:
            return super().get_command(ctx, name)
        from specbench.config import plugins

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
