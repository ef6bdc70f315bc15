"""One worker: a process that loads the models once, and does what it is sent, such as shards of a run (pool.py).

It is sent a plan, or other words of the command line, and its permissions. Nothing heavy is imported before its device
and threads are set, so this module imports neither torch nor what needs it.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from specbench import permissions
from specbench.base.environment import versions
from specbench.base.errors import UserError
from specbench.permissions import Permissions
from specbench.plan import Plan
from specbench.results.shard import Shard

if TYPE_CHECKING:
    from specbench.measure.work import Progress

Work = Callable[[Connection, int], None]  # what a worker does, with its line to the driver and its number
SHOWN = ("round", "warmup", "seconds", "committed", "drafted", "accepted")  # of rounds, for the progress bar


@dataclass(frozen=True)
class Ready:
    """The models are loaded: into how many shards the plan can be cut, how many documents it has, and who tells it."""

    places: int
    documents: int
    device: str = ""  # with its host
    version: str = ""  # of specbench


@dataclass(frozen=True)
class Given:
    """A shard to decode, and the folder for it."""

    shard: Shard
    place: Path


@dataclass(frozen=True)
class Advanced:
    """A shard has so many documents now."""

    done: int
    task: str
    rounds: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Ended:
    """A shard is decoded; or not, as the pool stops."""

    finished: bool


@dataclass(frozen=True)
class Refused:
    """What no other worker could do either, in a line."""

    line: str


def version() -> str:
    """The version of specbench here."""
    return versions()["specbench-harness"]


def serve(
    driver: Connection,
    number: int,
    work: Work,
    granted: Permissions,
    log: Path,
    environment: dict[str, str],
) -> None:
    """Be worker `number` until the driver hangs up. What would be printed goes into `log`, which may be no file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's: it lets workers finish their documents
    os.environ |= environment
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for output in (1, 2):
        os.dup2(opened, output)
    sys.stdout, sys.stderr = (open(output, "w", buffering=1, closefd=False) for output in (1, 2))  # noqa: SIM115
    tqdm.set_lock(threading.RLock())  # else bars of libraries take a semaphore, which a worker that is ended leaves
    try:
        with permissions.under(granted):
            work(driver, number)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # the driver is gone
    except (UserError, OSError) as error:
        driver.send(Refused(" ".join(str(error).split())))


def decode(plan: Plan, driver: Connection, number: int) -> None:
    """Decode the shards of a plan that the driver sends."""
    from specbench.base import environment
    from specbench.measure import loop, shards
    from specbench.measure.gate import admit
    from specbench.measure.prepare import prepare

    work = prepare(admit(plan), None)
    device = " on ".join(reversed(environment.origin(work.pair.device).values()))
    driver.send(Ready(len(shards.places(work)[0]), len(work.whole), device, version()))
    while True:
        given: Given | None = driver.recv()
        if given is None:  # the driver stops before anything was sent
            continue

        def report(state: "Progress") -> bool:
            rounds = [{name: row.get(name) for name in SHOWN} for row in state.rounds]
            driver.send(Advanced(state.done, state.request.task, rounds))
            return not driver.poll()  # whatever comes meanwhile asks to stop

        finished = loop.execute(plan, given.place, report, work.pair, shard=given.shard, worker=number)
        driver.send(Ended(finished))
