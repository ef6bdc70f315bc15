"""Workers as their driver sees them, and those that are processes on this machine."""

import multiprocessing
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from specbench import permissions
from specbench.measure.worker import Work, serve

LOG = re.compile(r"worker-\d+\.txt")  # names of files for what workers print
NOWHERE = Path(os.devnull)  # for what workers print, where it is not kept


class Line(Protocol):
    """What the driver hears of a worker, and tells it; EOFError or OSError if the worker is gone."""

    def recv(self) -> Any: ...

    def send(self, what: Any, /) -> None: ...


@dataclass(eq=False)
class Worker:
    """A process somewhere, and what it does now."""

    number: int
    line: Line
    log: Path
    end: Callable[[], str]  # tells how it ended
    device: str = ""
    ready: bool = False
    item: Any = None  # what it does now; None: it waits


@dataclass
class Crew:
    """The workers of a command, and what depends on where they are."""

    workers: list[Worker]
    wait: Callable[[list[Any], float], Sequence[Any]]  # the lines that have something to tell, within some seconds
    may_write: bool = False  # one that is lost may still write: its shard is continued in another folder


def log_of(number: int, logs: Path) -> Path:
    """The file for what a worker prints."""
    return logs if logs == NOWHERE else logs / f"worker-{number}.txt"


def start(
    number: int, work: Work, granted: permissions.Permissions, log: Path, environment: Mapping[str, str]
) -> tuple[BaseProcess, Connection]:
    """Start a worker on this machine; returns its process, and the line to it."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, number, work, granted, log, dict(environment)), daemon=True)
    process.start()
    theirs.close()  # so that its end is heard
    return process, mine


def how_it_ended(process: BaseProcess) -> str:
    process.join(1)
    return f"exit code {process.exitcode}"


@contextmanager
def started(work: Work, logs: Path, environments: Sequence[Mapping[str, str]]) -> Iterator[Crew]:
    """Processes that do the work; in the end none of them is left."""
    workers, everyone = [], []
    try:
        for number, environment in enumerate(environments, 1):
            log = log_of(number, logs)
            process, line = start(number, work, permissions.in_force(), log, environment)
            everyone.append((process, line))
            workers.append(Worker(number, line, log, partial(how_it_ended, process)))
        yield Crew(workers, wait)
    finally:
        for process, line in everyone:
            line.close()
            process.terminate()
        for process, _ in everyone:
            process.join(5)
            if process.is_alive():
                process.kill()
