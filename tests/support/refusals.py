"""Whatever is refused is refused in one line, which says what is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from specbench.config import UserError


@contextmanager
def one_line_error(
    *words: str, match: str | None = None, kind: type[Exception] = UserError
) -> Iterator[pytest.ExceptionInfo]:
    """What is done inside raises an error of one line that holds all `words` and, if given, meets the pattern."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    said = str(caught.value)
    assert said and "\n" not in said
    for word in words:
        assert word in said, said
