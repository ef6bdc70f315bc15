"""The error that a user can mend."""

import re

LONGEST = 2000  # characters of a message
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class UserError(Exception):
    """Something the user can mend: one line that says what is wrong and what to do; exit code 2.

    A message may quote what was read: it stays one line of bounded length, whatever that was.
    """

    def __init__(self, message: str) -> None:
        line = _CONTROLS.sub(lambda found: " " if found[0] in "\n\t" else ascii(found[0])[1:-1], message)
        super().__init__(line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}")
