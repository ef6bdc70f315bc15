"""A pytest plugin: commands that do nothing, so that a test which still passes has not looked at what its command did.

    SILENCED=1 python -m pytest -p silenced tests/cli

Every process that a test starts itself, and every call of the command line, ends at once with the exit code SILENCED
and prints nothing; fixtures run as they are. A test that starts none is skipped. Look at those that pass: exit code 1
passes for a refusal where nobody reads the refusal, and 0 for work where nobody looks for its results.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

CODE = int(os.environ.get("SILENCED", "1"))
_silent, _made = False, 0  # whether a test runs, and the commands that it was refused


def by_a_test() -> bool:
    """Whether the process that is being made was asked for by a test or its helpers, not by what they test."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_code.co_filename == subprocess.__file__:
        frame = frame.f_back
    return "tests" in Path(frame.f_code.co_filename).parts


class Popen(subprocess.Popen):
    def __init__(self, args: Any, *rest: Any, **options: Any) -> None:
        global _made
        if _silent and by_a_test():
            _made += 1
            args = [sys.executable, "-S", "-c", f"raise SystemExit({CODE})"]
            options = {name: value for name, value in options.items() if name not in ("shell", "executable")}
        super().__init__(args, *rest, **options)


def silent(runner: CliRunner, *arguments: Any, **options: Any) -> Result:
    global _made
    if not _silent:
        return invoke(runner, *arguments, **options)
    _made += 1
    raised = SystemExit(CODE)
    return Result(runner, b"", b"", b"", None, CODE, raised, (SystemExit, raised, None))


invoke = CliRunner.invoke
CliRunner.invoke = silent  # type: ignore[method-assign]
subprocess.Popen = Popen  # type: ignore[misc]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    global _silent
    before, _silent = _made, True
    try:
        result = yield
    finally:
        _silent = False
    if _made == before:
        pytest.skip("starts no command")
    return result
