"""Cases of parametrised tests: the most telling ones are in the short run, the others are marked long."""

from collections.abc import Callable, Container, Iterable
from typing import Any

import oracle
import pytest


def mostly_long(names: str, every: Iterable, short: Container | Callable[..., bool], **options: Any):
    """`pytest.mark.parametrize` with all cases but the `short` ones marked long; `short` may say of a case whether."""
    several = "," in names
    cases = []
    for case in every:
        values = case if several else (case,)
        kept = short(*values) if callable(short) else case in short
        cases.append(pytest.param(*values, marks=() if kept else pytest.mark.long))
    return pytest.mark.parametrize(tuple(names.replace(" ", "").split(",")) if several else names, cases, **options)


# The plainest one, and the one with windows, soft caps and scaled embeddings; what only another one shows belongs to
# the gates of test_exactness.py, test_session.py and test_trees.py, which have all of them in the short run.
architectures = mostly_long("architecture", oracle.ARCHITECTURES, ("llama", "gemma2"))
