"""Three processes inside the sandbox: one runs the program, one runs its tests, one watches both and has the verdict.

The process of the program (`solution`) never holds the tests or a way to the verdict: the tests are read after it was
forked, it keeps two pipes to the tests' process and nothing else, and nobody may look into the other two. The process
of the tests (`examine`) gets nothing of the program but bytes. Both are confined alike.

This module runs in the interpreter that becomes the program's, so it imports nothing but the standard library.
"""

from __future__ import annotations

import os
import select
import sys
import time
from fcntl import F_DUPFD, fcntl

from specbench.tasks.sandbox import jail
from specbench.tasks.sandbox.examine import GONE, examine
from specbench.tasks.sandbox.solution import serve

TYPE_CHECKING = False  # typing would only slow down the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

KEPT = 3  # the first of the descriptors that a confined process keeps, next to the standard three
START_SECONDS = 60.0
LONGEST_VERDICT = 1 << 14  # bytes
LOOK_SECONDS = 0.002


def supervise(work: dict[str, Any], message: Callable[[], Any]) -> NoReturn:
    """Isolate this process, run the program and the tests in two others, and write a line to the standard output.

    `work`: program, seconds, limits, size (bytes that may be written), readable, hidden, library (folders of the
    standard library, where its own cannot be read), alone (nothing but limits isolates), namespaces (they are made
    here), nobody (root's programs are). `message` reads the tests from the standard input. The line is `unable REASON`,
    or what `_watch` returns.
    """
    try:
        _shut_in(work)
        jail.control(jail.PR_SET_DUMPABLE, 0)  # nobody may look into this process and its children
        children, begun, verdict = _begin(work, message)
        line = _watch(children, begun, verdict, work["seconds"])
        if work["alone"]:  # otherwise they end with their namespace
            _kill_orphans()
    except OSError as error:
        line = f"unable {error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
    except BaseException as error:
        line = f"unable {type(error).__name__}: {error}"
    os.write(1, line.replace("\n", " ").encode("utf-8", "replace") + b"\n")
    os._exit(0)


def _shut_in(work: dict[str, Any]) -> None:
    """Isolate this process and those that it will fork."""
    jail.die_with_parent()
    if work["alone"]:
        jail.control(jail.PR_SET_CHILD_SUBREAPER, 1)
        return
    if work["namespaces"]:
        jail.unshare()
        first = os.fork()
        if first:  # outside the new process ids; it waits, so that killing it kills them all
            for descriptor in (0, 1, 2):
                os.close(descriptor)
            os.waitpid(first, 0)
            os._exit(0)
        jail.die_with_parent()
        jail.build_root(work["readable"], work["hidden"])
    jail.make_work(work["size"])


def _begin(work: dict[str, Any], message: Callable[[], Any]) -> tuple[tuple[int, int], int, int]:
    """Fork the solution's process and the tests'.

    Returns their ids, a pipe that holds a byte for each that is confined, and the pipe of the verdict.
    """
    (asked, asking), (answered, answering), (begun, confined), (verdict, reported) = (os.pipe() for _ in range(4))
    solution = os.fork()
    if not solution:
        _confine(work, 2, asked, answering, confined)
        serve(work["program"], os.fdopen(KEPT, "rb"), os.fdopen(KEPT + 1, "wb"))
    tests = os.fork()
    if not tests:
        text = message()
        _confine(work, None, answered, asking, confined, reported)
        report = os.fdopen(KEPT + 2, "wb", 0)
        examine(
            text,
            os.fdopen(KEPT + 1, "wb"),
            os.fdopen(KEPT, "rb"),
            lambda line: report.write(line.encode("utf-8", "replace")),
        )
    for descriptor in (asked, asking, answered, answering, confined, reported):
        os.close(descriptor)
    return (solution, tests), begun, verdict


def _confine(work: dict[str, Any], errors: int | None, read: int, write: int, begun: int, *others: int) -> None:
    """In a child: keep no files but `errors`, `read`, `write` and `others`, inherit nothing, give up all rights.

    The kept ones become the standard error and KEPT, KEPT + 1, and so on. A byte to `begun` tells that it is done.
    """
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        kept = [null, null, null if errors is None else errors, read, write, *others, begun]
        high = [fcntl(descriptor, F_DUPFD, 1 << 6) for descriptor in kept]
        for target, descriptor in enumerate(high):
            os.dup2(descriptor, target)
        os.closerange(len(kept), 1 << 16)
        for name in set(os.environ) - {"LC_CTYPE"}:
            del os.environ[name]
        jail.give_up_rights(work["limits"], become_nobody=work["nobody"] and os.getuid() == 0)
        if work["library"]:
            sys.path[:] = work["library"]
            sys.path_importer_cache.clear()
        for name in [name for name in sys.modules if name.startswith("specbench")]:
            del sys.modules[name]
        os.write(len(kept) - 1, b"b")
        os.close(len(kept) - 1)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "replace"))
        os._exit(1)


def _watch(children: tuple[int, int], begun: int, verdict: int, seconds: float) -> str:
    """Wait for the tests' verdict until the deadline, then kill the `children`, the solution's process and the tests'.

    Returns the verdict (`passed`, `failed ERROR`, `garbled`), `timeout`, or `status N` or `tests N` if the solution's
    process or the tests' ended before there was one; N as subprocess has it.
    """
    solution, tests = children
    try:
        deadline = time.monotonic() + START_SECONDS
        for _ in children:
            if not _readable(begun, deadline) or not os.read(begun, 1):
                return "unable the program's process did not start"
        deadline = time.monotonic() + seconds
        if not _readable(verdict, deadline):
            return "timeout"
        line = os.read(verdict, LONGEST_VERDICT).decode("utf-8", "replace")
        if line and line != GONE:
            return line
        ending, word = (solution, "status") if line else (tests, "tests")
        while time.monotonic() < deadline:  # it is about to end, or closed its pipes itself
            if end := os.waitid(os.P_PID, ending, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return f"{word} {end.si_status if end.si_code == os.CLD_EXITED else -end.si_status}"
            _readable(None, time.monotonic() + LOOK_SECONDS)
        return "timeout"
    finally:
        for child in children:
            os.kill(child, jail.SIGKILL)
            os.waitpid(child, 0)


def _readable(source: int | None, deadline: float) -> bool:
    """Wait until `source` (if any) can be read; False at the deadline. Raises EOFError if nobody awaits the result."""
    poll = select.poll()
    poll.register(0, 0)  # the other end of stdin closes when those who started us are gone
    if source is not None:
        poll.register(source, select.POLLIN)
    events = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    if any(descriptor == 0 for descriptor, _ in events):
        raise EOFError("nobody waits for the result")
    return bool(events)


def _kill_orphans() -> None:
    """Kill what the program left running; without a namespace, this process adopts every orphan."""
    try:
        while True:
            for orphan in _children():
                os.kill(orphan, jail.SIGKILL)
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def _children() -> list[int]:
    try:
        with open("/proc/thread-self/children") as file:
            return [int(name) for name in file.read().split()]
    except OSError:
        return []
