"""What workers have to do, who does what, and what becomes of the work of a lost one; and how they are started."""

import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from specbench.base.console import warn
from specbench.config import UserError
from specbench.measure.crew import NOWHERE, Crew, Worker, started
from specbench.measure.staffing import Staffing
from specbench.measure.worker import Refused, Work, version

Item = TypeVar("Item")
TRIES = 3  # of what a lost worker had
PATIENCE = 0.2  # seconds between looks at Ctrl-C
LOADING = 1800  # seconds until the first worker must have loaded the models


class Queue(Generic[Item]):
    """What workers have to do, each item by one of them. One that a lost worker had goes to another worker.

    An item that is lost TRIES times ends it all, and so does the last worker.
    """

    def __init__(self, crew: Crew, advice: str = "") -> None:
        """`advice` says how the user goes on after such an end."""
        self.crew, self.workers, self.advice = crew, crew.workers, advice
        self.waiting: deque[Item] | None = None  # unknown until a worker has loaded the models
        self._lost: Counter[Item] = Counter()
        self._began = time.monotonic()

    @property
    def busy(self) -> bool:
        return any(worker.item is not None for worker in self.workers)

    def heard(self, seconds: float = PATIENCE) -> list[Worker]:
        """The workers that have something to tell, or are gone; waits for one so long at most.

        Raises UserError if none has loaded the models in time: one may never have been started.
        """
        if self.waiting is None and time.monotonic() > self._began + LOADING:
            log = self.workers[0].log
            where = "try it without --workers" if log == NOWHERE else f"see {log.parent}"
            raise UserError(f"no worker has loaded the models within {LOADING / 60:.0f} minutes; {where}")
        ready = self.crew.wait([worker.line for worker in self.workers], seconds)
        return [worker for worker in self.workers if worker.line in ready]

    def receive(self, worker: Worker) -> Any:
        """The message of a worker that has one; None if it is lost.

        Raises:
            UserError: it refuses, its item was lost too often, or no worker is left.
        """
        try:
            message = worker.line.recv()
        except (EOFError, OSError):
            self._lose(worker)
            return None
        if isinstance(message, Refused):
            raise UserError(message.line)
        return message

    def give(self, as_sent: Callable[[Item], Any]) -> None:
        """Send an item to each worker that waits for one."""
        for worker in self.workers:
            if self.waiting and worker.ready and worker.item is None:
                worker.item = self.waiting.popleft()
                sent = as_sent(worker.item)
                with suppress(OSError):  # it is gone, and is lost when it is heard
                    worker.line.send(sent)

    def _lose(self, worker: Worker) -> None:
        """Strike a worker off; its item goes to another one."""
        self.workers.remove(worker)
        last_words = f"; see {worker.log}" * (worker.log != NOWHERE)
        how = f"worker {worker.number} is lost ({worker.end()}{last_words})"
        if worker.item is not None and self.waiting is not None:
            self._lost[worker.item] += 1
            if self._lost[worker.item] >= TRIES:
                raise UserError(f"{worker.item} was lost {TRIES} times: {how}{self.advice}")
            self.waiting.appendleft(worker.item)
        if not self.workers:
            raise UserError(f"no worker is left: {how}{self.advice if self.waiting is not None else ''}")
        warn(how + (f"; another one continues {worker.item}" if worker.item is not None else ""))


def check_version(worker: Worker, its: str) -> None:
    """Raise UserError if a worker has another version of specbench than its driver."""
    if its and its != version():
        raise UserError(
            f"worker {worker.number} has specbench {its}, and this is {version()}: install one version everywhere"
        )


def starter(
    staffing: Staffing, device: str, timed: bool = False
) -> Callable[[Work, Path], AbstractContextManager[Crew]]:
    """What starts the workers, given what they do and the folder for what they print (NOWHERE: it is not kept).

    Raises:
        UserError: there are too few devices, workers would share one that is timed, or Ray is not installed.
    """
    if staffing.ray:
        from specbench.measure import ray_workers

        ray_workers.imported(staffing.ray)
        return partial(
            ray_workers.started, count=staffing.workers, each=staffing.gpus, address=staffing.ray, device=device
        )
    return partial(started, environments=staffing.environments(device, timed))
