"""The process of the tests: runs them on a solution that is in another process, and reports whether they passed.

The names that the tests take from the solution are bound to `Remote`s. A call of one is sent as bytes, and the answer
comes back as new objects of built-in types, or as another `Remote`. So the tests' own interpreter makes every
comparison, and no code and no object of the program is ever in it.

This module runs in an interpreter of its own, so it imports nothing but the standard library.
"""

from __future__ import annotations

import builtins
import os
import sys

from specbench.tasks.sandbox.solution import GETATTR, ITER, MODULE, NEXT, RAISED, RETURNED, line_of
from specbench.tasks.sandbox.values import decode, encode, receive, send

TYPE_CHECKING = False  # typing would only slow down the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO, NoReturn

PASSED, FAILED, GONE, GARBLED = "passed", "failed", "gone", "garbled"


class Remote:
    """An object in the solution's process, within reach of calls, attributes and iteration; it equals only itself."""

    __slots__ = ("_call", "_number")

    def __init__(self, number: int, call: Callable[..., Any]) -> None:
        self._number, self._call = number, call

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._call(self._number, arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        return self._call(GETATTR, (self, name), {})

    def __iter__(self) -> Any:
        return self._call(ITER, (self,), {})

    def __next__(self) -> Any:
        return self._call(NEXT, (self,), {})


def examine(tests: dict[str, Any], requests: BinaryIO, answers: BinaryIO, report: Callable[[str], object]) -> NoReturn:
    """Run `tests` (setup, names, text) on the solution at the other end of the pipes, `report` a verdict, and exit.

    The verdict is a word and, if the tests failed, the error. Nothing that the solution sends can be caught by the
    tests, but for errors of its functions: the name of a built-in Exception and a text.
    """

    def leave(verdict: str) -> NoReturn:
        report(verdict)
        os._exit(0)

    def answer() -> Any:
        try:
            message = receive(answers)
            value = decode(message[1:], lambda number: Remote(number, call))
            error = _error(*value) if message[:1] == RAISED else None
            if error is None and message[:1] != RETURNED:
                leave(GARBLED)
        except EOFError:
            leave(GONE)
        except BaseException:
            leave(GARBLED)
        if error is not None:
            raise error
        return value

    def call(number: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        message = encode((number, arguments, keywords), _number)
        try:
            send(requests, message)
        except OSError:
            leave(GONE)
        try:
            return answer()
        except StopIteration as error:
            if number == NEXT:
                raise
            raise RuntimeError(f"the solution raised StopIteration {error}") from None  # it would end a `map` of calls

    module = sys.modules["__main__"] = type(sys)("__main__")
    try:
        exec(compile(tests["setup"], "setup.py", "exec", dont_inherit=True), module.__dict__)
        answer()  # the program has ended
        for name in tests["names"]:
            module.__dict__.pop(name, None)  # what the setup begins, the solution must complete
            try:
                module.__dict__[name] = call(GETATTR, (Remote(MODULE, call), name), {})
            except AttributeError:
                continue
        exec(compile(tests["text"], "tests.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        leave(f"{FAILED} {line_of(error)}")
    leave(PASSED)


def _number(item: Any) -> int:
    """The number of a Remote. Raises TypeError for what cannot be sent to the solution."""
    if type(item) is not Remote:
        raise TypeError(f"tests cannot give a solution objects of type {type(item).__name__}, only plain values")
    number: int = item._number
    return number


def _error(kinds: list[str], text: str) -> Exception:
    """The built-in Exception that is the first of `kinds`. Raises ValueError if there is none."""
    for name in kinds:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(text)
            except TypeError:  # it takes more than a text
                continue
    raise ValueError("no error")
