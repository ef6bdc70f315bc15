"""Faults that a process brings along: each is called before the command begins, with plain values, and changes what the
command will meet. Nothing in specbench knows of them.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

YEAR = 365 * 86400
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def block(documents: int) -> None:
    """Join the parts of every few documents, so that a short run has blocks."""
    from specbench.results import recorder

    recorder.BLOCK = documents


def small_disk(_: object) -> None:
    """Let a run begin on a disk that it would find too small."""
    from specbench.measure import command, machine

    command.NO_SPACE = machine.NO_SPACE = machine.LITTLE_SPACE = 0


def idle(_: object) -> None:
    """No other work on the machine is seen: what a busy one does not keep is kept."""
    from specbench.measure import machine

    machine.busy = lambda: machine.Diagnosis("load", "ok", "")  # type: ignore[assignment]


def slow(seconds: float) -> None:
    """Plain decoding of each text begins late."""
    from specbench.methods.chains.vanilla import Vanilla

    rounds = Vanilla.rounds

    def late(self: Any, *given: Any) -> Any:
        time.sleep(seconds)
        return rounds(self, *given)

    Vanilla.rounds = late  # type: ignore[method-assign]


def slow_scoring(seconds: float) -> None:
    from specbench.tasks.harness import Tasks

    score = Tasks.score

    def late(self: Any, *given: Any) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.01)
        return score(self, *given)

    Tasks.score = late  # type: ignore[method-assign]


def at_events(given: dict[str, Any]) -> None:
    """Count what Python does to names in a folder, and before event `at` do `what`: kill, or fill (see `fill`).

    The count goes to the file `told`, if given. Events of the threads and of the children are the process' own.
    """
    folder, facts, at = given["folder"], given.get("told"), given.get("at")
    out = os.open(facts, os.O_WRONLY | os.O_CREAT) if facts else None
    count, busy = 0, False

    def hook(event: str, words: tuple[Any, ...]) -> None:
        nonlocal count, busy
        if busy or event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            return
        if event == "open" and not (isinstance(words[2], int) and words[2] & WRITING) and not folder_of(words[0]):
            return
        # A bare name is one in an open folder (base/folder.py).
        bare = words[2] & os.O_NOFOLLOW and "/" not in str(words[0]) if event == "open" else words[-1] != -1
        if folder not in str(words[0]) and not bare:
            return
        count += 1
        if out is not None:
            os.pwrite(out, b"%d" % count, 0)
        if count == at:
            busy = True
            if given["what"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                fill(Path(given["ballast"]), given.get("leave", 0))
            busy = False

    def folder_of(path: object) -> bool:  # opened to be synced
        return isinstance(path, str | Path) and str(path).startswith(folder)

    sys.addaudithook(hook)


def fill(ballast: Path, leave: int) -> None:
    """Take what a disk has, but for some bytes."""
    opened = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    size, step = os.fstat(opened).st_size, 2**16
    while step >= 512:
        try:
            size += os.pwrite(opened, b"x" * step, size)
        except OSError:
            step //= 2
    os.ftruncate(opened, max(0, size - leave))
    os.close(opened)


def full_at_join(given: dict[str, Any]) -> None:
    """The disk becomes full (see `fill`) when a driver begins to join the shards of its workers."""
    from specbench.measure import join

    joined = join.join

    def with_little_room(*words: Any) -> None:
        fill(Path(given["ballast"]), given["leave"])
        joined(*words)

    join.join = with_little_room


def errors(name: str) -> Exception:
    import torch

    known: dict[str, Callable[[], Exception]] = {
        "MemoryError": lambda: MemoryError("no memory"),
        "OutOfMemoryError": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        "RuntimeError": lambda: RuntimeError("the method broke"),
        "AssertionError": lambda: AssertionError(),
    }
    return known[name]()


def fail(given: dict[str, Any]) -> None:
    """A method's step (rounds, reset, state, restore) raises `error` at its calls `calls`, counted from 1."""
    from specbench.methods import module

    built = module(given["method"]).build
    calls = 0

    def breaking(*words: Any) -> Any:
        method = built(*words)
        step = getattr(method, given["step"])

        def once(*more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls in given["calls"]:
                raise errors(given["error"])
            return step(*more)

        setattr(method, given["step"], once)
        return method

    module(given["method"]).build = breaking


def forward_fails(given: dict[str, Any]) -> None:
    """A forward inside of one method raises `error`: the first after `after` forwards of a text, at text `text`."""
    from specbench.engine.session import Session
    from specbench.methods import module

    within, texts, forwards = False, 0, 0
    built, forward = module(given["method"]).build, Session.forward

    def build(*words: Any) -> Any:
        method = built(*words)
        rounds = method.rounds

        def watched(*more: Any) -> Any:
            nonlocal within, texts, forwards
            texts, forwards = texts + 1, 0
            parsed = rounds(*more)
            while True:
                within = True
                try:
                    one = next(parsed)
                except StopIteration:
                    return
                finally:
                    within = False
                yield one

        method.rounds = watched
        return method

    def breaking(self: Any, *words: Any, **more: Any) -> Any:
        nonlocal forwards
        if within and texts == given["text"]:
            forwards += 1
            if forwards > given["after"]:
                raise errors(given["error"])
        return forward(self, *words, **more)

    module(given["method"]).build = build
    Session.forward = breaking  # type: ignore[method-assign]


def clock_back(calls: int) -> None:
    """After so many looks at the wall clock it is a year earlier; monotonic clocks go on."""
    seen, real = 0, time.time

    def now() -> float:
        nonlocal seen
        seen += 1
        return real() - YEAR * (seen > calls)

    _wall_clock(now)


def clock_stopped(stamp: float) -> None:
    """The wall clock stands still."""
    _wall_clock(lambda: stamp)


def _wall_clock(now: Callable[[], float]) -> None:
    strftime, localtime, gmtime = time.strftime, time.localtime, time.gmtime
    time.time = now
    time.time_ns = lambda: int(now() * 1e9)
    time.localtime = lambda seconds=None: localtime(now() if seconds is None else seconds)  # type: ignore[assignment]
    time.gmtime = lambda seconds=None: gmtime(now() if seconds is None else seconds)  # type: ignore[assignment]
    time.strftime = lambda form, at=None: strftime(form, at or time.localtime())  # type: ignore[assignment]


def little_memory(mib: int) -> None:
    """An address space of what is taken now and `mib` more."""
    import resource

    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    with suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (taken + mib * 2**20,) * 2)


def folder(path: str) -> None:
    """Work in this folder."""
    os.chdir(path)


def environment(given: dict[str, str]) -> None:
    os.environ.update(given)
