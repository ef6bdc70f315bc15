"""The process of the solution: runs the program to its end, then carries out the calls that the tests ask for.

Nothing here can be trusted once the program has begun. All that leaves this process are answers to calls, as bytes; it
holds neither the tests nor a way to the verdict. So a program that takes over this code can only give other answers.

This module runs in the interpreter that becomes the program's, so it imports nothing but the standard library.
"""

from __future__ import annotations

import os
import sys

from specbench.tasks.sandbox.values import decode, encode, receive, send

TYPE_CHECKING = False  # typing would only slow down the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO, NoReturn

RETURNED, RAISED = b"=", b"!"
MODULE, GETATTR, ITER, NEXT = range(4)  # the numbers of the first objects


def serve(source: str, requests: BinaryIO, answers: BinaryIO) -> NoReturn:
    """Run `source`, say that it has ended, and answer calls until nobody asks; exit status 1 if `source` fails.

    A request is one value: the number of the object that is called, its arguments and its keyword arguments.
    """
    module = sys.modules["__main__"] = type(sys)("__main__")
    objects: list[Any] = [module, getattr, iter, next]

    def refer(item: Any) -> int:
        objects.append(item)
        return len(objects) - 1

    try:
        exec(compile(source, "program.py", "exec", dont_inherit=True), module.__dict__)
        send(answers, RETURNED + encode(None, refer))
        while True:
            try:
                request = receive(requests)
            except EOFError:
                break
            send(answers, _answer(request, objects.__getitem__, refer))
    except BaseException as error:
        os.write(2, f"\n{line_of(error)}\n".encode("utf-8", "replace"))
        os._exit(1)
    os._exit(0)


def _answer(request: bytes, resolve: Callable[[int], Any], refer: Callable[[Any], int]) -> bytes:
    """The answer to one request. An error that is no Exception is not caught here: it would end the tests as well."""
    try:
        number, arguments, keywords = decode(request, resolve)
        return RETURNED + encode(resolve(number)(*arguments, **keywords), refer)
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return RAISED + encode((kinds, str(error)), refer)


def line_of(error: BaseException) -> str:
    """An error's type and text as one line of at most 1,000 characters."""
    text = str(error)
    return f"{type(error).__name__}{': ' if text else ''}{text}"[:1000].replace("\n", " ")
