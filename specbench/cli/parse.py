"""Values of options that are checked before anything is loaded or run."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from specbench.config import UserError

Number = TypeVar("Number", int, float)


def numbers(option: str, text: str | None) -> list[float]:
    """`0.3,0.5` as numbers; none where the option is not given. Raises UserError for what is no number."""
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
