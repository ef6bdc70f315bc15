"""Scoring functions of tasks, run in a child process: no answer can hang a run, take all memory, or end the scoring.

Mathematics is compared by programs that may take hours over one line of LaTeX. The libraries limit some of their steps
themselves; this limits an answer as a whole, whatever it is busy with.
"""

import multiprocessing
import os
import resource
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from specbench.tasks.sandbox.jail import die_with_parent

ANSWER_SECONDS = 60.0  # lm-eval's own limits of single steps come to 20
MEMORY_BYTES = 4 << 30  # beyond what this process has


@dataclass(frozen=True)
class GaveUp:
    """No result; `reason` completes "scoring …"."""

    reason: str


def each(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """The results of `function` for the arguments in `jobs`, in order; a GaveUp where there is none.

    A child process is forked, and another one after each result that took too long or ended the child.
    """
    done = 0
    while done < len(jobs):
        results, child = _fork(function, jobs[done:])
        try:
            while done < len(jobs):
                done += 1
                try:
                    in_time = results.poll(ANSWER_SECONDS)
                    yield results.recv() if in_time else GaveUp(f"took longer than {ANSWER_SECONDS:g} s")
                except EOFError:
                    in_time = False
                    yield GaveUp("ended its process")
                if not in_time:
                    break
        finally:
            child.kill()
            child.join()
            results.close()


def _fork(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> tuple[Connection, Any]:
    context = multiprocessing.get_context("fork")
    results, ours = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(ours, function, jobs))
    with warnings.catch_warnings():  # that other threads are not copied: the child uses none
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    ours.close()
    return results, child


def _work(results: Connection, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends this process
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = size + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    for job in jobs:
        try:
            result = function(*job)
        except Exception as error:
            result = GaveUp(f"raised {type(error).__name__}")
        results.send(result)
