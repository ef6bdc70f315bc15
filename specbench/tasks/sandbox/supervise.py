"""Two processes inside the sandbox: one runs the program, the other watches it and alone reports how it ended.

The program shares an interpreter with `run`, as its tests do, so the program could report whatever `run` reports at the
end. What it cannot fake is where a report comes from: when `run` knocks, the watcher reads the stack pointer of the
waiting process, which the kernel shows, and accepts only a knock from the same height of the stack as the one before
the program began. The program runs far below, under `DEPTH` nested C calls that nothing in Python can leave. So the
check needs no secret that the program could find.

This module runs in the interpreter that becomes the program's, so it imports nothing but the standard library. It is
compiled to one line, so that a trace function of the program has no other line of `run` to jump to.
"""

from __future__ import annotations

import os
import select
import sys
import time
from fcntl import F_DUPFD, fcntl

from specbench.tasks.sandbox import jail

TYPE_CHECKING = False  # typing would only slow down the start
if TYPE_CHECKING:
    from typing import Any

DOOR, ANSWER = 3, 4  # descriptors of the program's process: it knocks on one and waits on the other
BEGUN, DONE = b"b", b"d"
DEPTH = 64  # calls of C between `run` and the program
SLACK = 2048  # bytes of stack by which two knocks of `run` may differ (they differ by 80); the program is 9,000 below
START_SECONDS = 60.0
QUICK_LOOKS, LOOK_SECONDS = 100, 0.001


def run(source: bytes) -> None:
    """Run `source` to its end in the program's process, knock, and exit; with status 1 if `source` fails.

    No local name can be trusted once the program has begun, since it can walk to this frame and, from Python 3.13 on,
    set them. So only the branch without an exception leads to the second knock.
    """
    read, write, leave, text = os.read, os.write, os._exit, str
    module = sys.modules["__main__"] = type(sys)("__main__")
    write(DOOR, BEGUN)
    read(ANSWER, 1)
    try:
        steps: Any = map(exec, (compile(source, "program.py", "exec", dont_inherit=True),), (module.__dict__,))
        for _ in range(DEPTH):
            steps = map(id, steps)
        next(steps)
    except BaseException as error:
        try:
            message = text(error)
        except BaseException:
            message = ""
        line = type(error).__name__ + (": " + message if message else "")
        write(2, ("\n" + line[:1000].replace("\n", " ") + "\n").encode("utf-8", "replace"))
        leave(1)
    else:
        write(DOOR, DONE)
        read(ANSWER, 1)
    leave(0)


def supervise(work: dict[str, Any]) -> None:
    """Isolate this process, fork, and return in the child, which must call `run`; the parent never returns.

    `work`: kind, seconds, limits, size (bytes that may be written), readable, hidden. The parent writes one line to the
    standard output: `passed`, `forged`, `timeout`, `status N` (as subprocess has it), or `unable REASON`.
    """
    try:
        processes = _shut_in(work)
        knocks, door = os.pipe()
        waiting, answers = os.pipe()
        child = os.fork()
        if not child:
            _confine(work, door, waiting)
            return
        os.close(door)
        jail.control(jail.PR_SET_DUMPABLE, 0)  # the program's process may not look in here
        verdict = _watch(child, knocks, answers, work["seconds"], processes)
        if work["kind"] == "limits":  # otherwise they end with their namespace
            _kill_orphans()
    except OSError as error:
        verdict = f"unable {error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
    except BaseException as error:
        verdict = f"unable {type(error).__name__}: {error}"
    os.write(1, verdict.replace("\n", " ").encode("utf-8", "replace") + b"\n")
    os._exit(0)


def _shut_in(work: dict[str, Any]) -> int | None:
    """Isolate this process; returns an open folder of processes that lists its child by the id that fork returns."""
    jail.die_with_parent()
    if work["kind"] == "limits":
        jail.control(jail.PR_SET_CHILD_SUBREAPER, 1)
        return os.open("/proc", os.O_RDONLY | os.O_DIRECTORY) if os.path.isdir("/proc/self") else None
    if work["kind"] == "namespaces":
        jail.unshare()
        first = os.fork()
        if first:  # outside the new process ids; it waits, so that killing it kills them all
            for descriptor in (0, 1, 2):
                os.close(descriptor)
            os.waitpid(first, 0)
            os._exit(0)
        jail.die_with_parent()
        processes = jail.build_root(work["readable"], work["hidden"])
    else:
        processes = jail.detached("/proc")
    jail.make_work(work["size"])
    return processes


def _confine(work: dict[str, Any], door: int, waiting: int) -> None:
    """In the child: close all files but the door and the standard three, inherit nothing, give up all rights."""
    try:
        os.setsid()
        _close_all_but(door, waiting)
        for name in set(os.environ) - {"LC_CTYPE"}:
            del os.environ[name]
        jail.give_up_rights(work["limits"], become_nobody=work["kind"] == "namespaces" and os.getuid() == 0)
        for name in [name for name in sys.modules if name.startswith("specbench")]:
            del sys.modules[name]
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "replace"))
        os._exit(1)


def _close_all_but(door: int, waiting: int) -> None:
    high = [fcntl(descriptor, F_DUPFD, 10) for descriptor in (os.open("/dev/null", os.O_RDWR), door, waiting)]
    for descriptor, target in zip((high[0], *high), (0, 1, DOOR, ANSWER), strict=True):
        os.dup2(descriptor, target)
    os.closerange(ANSWER + 1, 1 << 16)


def _watch(child: int, knocks: int, answers: int, seconds: float, processes: int | None) -> str:
    """Let the child begin, wait for its end, its claim or the deadline, and kill it; returns the verdict."""
    try:
        deadline = time.monotonic() + START_SECONDS
        if not _readable(knocks, deadline) or os.read(knocks, 1) != BEGUN:
            return "unable the program's process did not start"
        begin = _place(child, processes, deadline)
        os.write(answers, BEGUN)
        deadline = time.monotonic() + seconds
        if not _readable(knocks, deadline):
            return "timeout"
        knock = os.read(knocks, 1)
        if knock:
            if knock != DONE:
                return "forged"
            if begin is None:  # the kernel does not show it
                return "passed"
            place = _place(child, processes, deadline)
            if place is not None:
                return "passed" if place[0] == begin[0] and abs(place[1] - begin[1]) <= SLACK else "forged"
        while time.monotonic() < deadline:  # the door is closed: the program is about to end, or closed it itself
            if end := _ended(child):
                return f"status {end.si_status if end.si_code == os.CLD_EXITED else -end.si_status}"
            _readable(None, time.monotonic() + 0.002)
        return "timeout"
    finally:
        os.kill(child, jail.SIGKILL)
        os.waitpid(child, 0)


def _ended(child: int) -> os.waitid_result | None:
    """How `child` ended, without reaping it; None while it runs."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _readable(knocks: int | None, deadline: float) -> bool:
    """Wait until `knocks` (if any) can be read; False at the deadline. Raises EOFError if nobody awaits the result."""
    poll = select.poll()
    poll.register(0, 0)  # the other end of stdin closes when those who started us are gone
    if knocks is not None:
        poll.register(knocks, select.POLLIN)
    events = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    if any(descriptor == 0 for descriptor, _ in events):
        raise EOFError("nobody waits for the result")
    return bool(events)


def _place(child: int, processes: int | None, deadline: float) -> tuple[int, int] | None:
    """The system call number and the stack pointer of `child` while it waits for an answer.

    None if the kernel does not show them, or if `child` does not wait there before the deadline.
    """
    looks = 0
    while processes is not None and time.monotonic() < deadline and not _ended(child):
        looks += 1
        try:
            shown = os.open(f"{child}/syscall", os.O_RDONLY, dir_fd=processes)
            try:
                fields = os.read(shown, 300).split()
            finally:
                os.close(shown)
        except OSError:
            return None
        if len(fields) == 9 and int(fields[1], 16) == ANSWER:  # otherwise it runs, or waits elsewhere
            return int(fields[0]), int(fields[7], 16)
        if looks > QUICK_LOOKS:
            _readable(None, time.monotonic() + LOOK_SECONDS)
    return None


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
