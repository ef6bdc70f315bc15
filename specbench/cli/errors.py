"""What commands check before they begin, and errors that become one line."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import typer
from rich.text import Text

from specbench import config
from specbench.base.console import PlainConsole, leave_closed_pipe, plain, reader_has_gone
from specbench.config import PairSpec, UserError

Number = TypeVar("Number", int, float)


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn errors that the user can mend into one line and exit code 2.

    From here on garbage is collected (`main` disabled that), as the imports are done.
    """
    gc.freeze()
    gc.enable()
    try:
        yield
    except (UserError, OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith("Symlink loop"):  # of `Path.resolve`
            raise
        if isinstance(error, BrokenPipeError) and reader_has_gone():
            leave_closed_pipe()
        errors = PlainConsole(stderr=True, soft_wrap=True, highlight=False)
        errors.print(Text.assemble(("error:", "red"), f" {plain(str(error))}"))
        raise typer.Exit(2) from None


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
