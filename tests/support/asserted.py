"""A pytest plugin: a test that passes and has asserted nothing fails, such as one whose loop ran over nothing.

    python -m pytest -p asserted -o enable_assertion_pass_hook=true

What counts: `assert` in tests and their helpers, `pytest.raises` and `pytest.warns` that were met, and the comparisons
of torch, numpy and pandas. It takes time for each assertion, so it is no part of `make test`.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.testing
import pandas.testing
import pytest
import torch.testing

SUPPORT = Path(__file__).parent
pytest.register_assert_rewrite(*(path.stem for path in SUPPORT.glob("*.py") if path.stem != "asserted"))
COMPARISONS = {
    torch.testing: ("assert_close",),
    numpy.testing: ("assert_allclose", "assert_array_equal", "assert_equal", "assert_array_almost_equal"),
    pandas.testing: ("assert_frame_equal", "assert_series_equal"),
}
_made = 0  # assertions of this process


def counting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        global _made
        result = function(*args, **kwargs)
        _made += 1
        return result

    return counted


def pytest_configure(config: pytest.Config) -> None:
    if not config.getini("enable_assertion_pass_hook"):
        raise pytest.UsageError("-p asserted needs -o enable_assertion_pass_hook=true")
    for module, names in COMPARISONS.items():
        for name in names:
            setattr(module, name, counting(getattr(module, name)))
    for kind in (pytest.raises, pytest.warns):
        made = type(kind(Exception) if kind is pytest.raises else kind(UserWarning))
        made.__exit__ = counting(made.__exit__)  # type: ignore[method-assign]


def pytest_assertion_pass() -> None:
    global _made
    _made += 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    before = _made
    result = yield
    if _made == before:
        pytest.fail("this test passed and asserted nothing", pytrace=False)
    return result
