"""Scoring functions of tasks, run in a child process: no answer can hang a run, take all memory, or end the scoring.

Mathematics is compared by programs that may take hours over one line of LaTeX. The libraries limit some of their steps
themselves; this limits an answer as a whole, whatever it is busy with.
"""

import atexit
import multiprocessing
import os
import resource
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

ANSWER_SECONDS = 60.0  # lm-eval's own limits of single steps come to 20
MEMORY_BYTES = 4 << 30  # beyond what this process has


@dataclass(frozen=True)
class GaveUp:
    """No result; `reason` completes "scoring …"."""

    reason: str


@dataclass(frozen=True)
class Child:
    """A process that calls one function for each job that it gets."""

    function: Callable[..., Any]
    process: Any
    pipe: Connection  # jobs there, results back

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


_kept: list[Child] = []  # the last function's, if it is still there: what it imported need not be imported again


def each(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """The results of `function` for the arguments in `jobs`, in order; a GaveUp where there is none.

    A child process is forked, and another one after each result that took too long or ended the child. It stays for the
    next call with the same function.
    """
    for job in jobs:
        yield _result(function, job)


def _result(function: Callable[..., Any], job: tuple[Any, ...]) -> Any:
    child = _child(function)
    in_time = False
    try:
        child.pipe.send(job)
        in_time = child.pipe.poll(ANSWER_SECONDS)
        return child.pipe.recv() if in_time else GaveUp(f"took longer than {ANSWER_SECONDS:g} s")
    except (EOFError, ConnectionError):
        in_time = False
        return GaveUp("ended its process")
    except BaseException:  # such as Ctrl-C: its result would be taken for that of the next job
        in_time = False
        raise
    finally:
        if not in_time:
            end_child()


def end_child() -> None:
    """End the child process that is kept, if there is one."""
    while _kept:
        _kept.pop().end()


atexit.register(end_child)


def _child(function: Callable[..., Any]) -> Child:
    if not _kept or _kept[0].function != function:
        end_child()
        context = multiprocessing.get_context("fork")
        pipe, others = context.Pipe()
        process = context.Process(target=_work, args=(others, function))
        with warnings.catch_warnings():  # that other threads are not copied: the child uses none
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        others.close()
        _kept.append(Child(function, process, pipe))
    return _kept[0]


def _work(pipe: Connection, function: Callable[..., Any]) -> None:
    from specbench.tasks.sandbox.jail import die_with_parent  # in the child alone

    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends this process
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = size + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    while True:
        job = pipe.recv()
        try:
            result = function(*job)
        except Exception as error:
            result = GaveUp(f"raised {type(error).__name__}")
        pipe.send(result)
