"""The error for everything that a user can mend."""

import difflib
import re
from collections.abc import Iterable

LONGEST = 2000  # characters of a message
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
