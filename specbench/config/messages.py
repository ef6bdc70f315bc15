"""What is wrong with a value of a file or of the command line, in one line: where it stands, its key, and itself."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from specbench.base.errors import did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

OPTIONS = "the command line"  # as `where`: keys are options then
LONG = 60  # characters of a value
YAML_WORDS = {"a valid tuple": "a list", "a valid dictionary": "a mapping of keys to values"}
WITHOUT_VALUE = ("missing", "value_error")  # pydantic's kinds of errors whose value says nothing, or is in the message


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
