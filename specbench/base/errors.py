"""The error for everything that a user can mend, and what is wrong with a value, in one line."""

import difflib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

LONGEST, LONG = 2000, 60  # characters of a message, and of a value in it
OPTIONS = "the command line"  # as `where`: keys are options then
YAML_WORDS = {"a valid tuple": "a list", "a valid dictionary": "a mapping of keys to values"}
WITHOUT_VALUE = ("missing", "value_error")  # pydantic's kinds of errors whose value says nothing, or is in the message
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class UserError(Exception):
    """Something that the user can mend; one line says what is wrong and what to do. Commands exit with 2.

    A message may quote any input: it is made one line of bounded length.
    """

    def __init__(self, message: str) -> None:
        line = _CONTROLS.sub(lambda match: " " if match[0] in "\n\t" else ascii(match[0])[1:-1], message)
        super().__init__(line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for an error's message, such as `, did you mean 'gamma'?`; empty if no known word is close.

    Of a dotted key, such as `tasks.0.fewshots`, only the last part is looked up.
    """
    close = difflib.get_close_matches(word.rpartition(".")[2], known, n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


def wrong_value(error: "ErrorDetails", where: str, known: Iterable[str] = ()) -> str:
    """An error of pydantic in words; `known` are keys that an unknown one may have been meant for."""
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key {key!r}{did_you_mean(key, known)}"
    message = f"{error['msg'][0].lower()}{error['msg'][1:]}"
    for theirs, ours in YAML_WORDS.items():
        message = message.replace(theirs, ours)
    if where == OPTIONS:
        return f"--{key.replace('_', '-')} {_short(error['input'])}: {message}"
    value = "" if error["type"] in WITHOUT_VALUE else f", not {_short(error['input'])}"
    return f"{where}: {key}: {message}{value}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) and value.isidentifier() else repr(value)
    return text if len(text) <= LONG else f"{text[:LONG]} …"
