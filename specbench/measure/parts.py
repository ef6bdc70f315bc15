"""Work in parts that makes no run: this process does it, or several workers, with the same results in the same order.

The command says how the work is opened, which loads the models; each worker opens it once, and then does the parts that
it is sent. A part depends on nothing but its number. One of a lost worker goes to another worker (queue.py).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Generic, Protocol, TypeVar

from specbench.base.console import progress
from specbench.base.untrusted import brief
from specbench.config import UserError
from specbench.measure.crew import NOWHERE, Crew, Worker
from specbench.measure.queue import Queue, check_version, starter
from specbench.measure.staffing import Staffing
from specbench.measure.worker import Refused, version

Facts = TypeVar("Facts")
Result = TypeVar("Result")
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Opened(Generic[Facts, Result]):
    """Work whose models are loaded. `facts` are what the command needs besides results, the same at every worker."""

    facts: Facts
    parts: int
    steps: int  # of all parts, for the progress bar
    do: Callable[[int, Advance], Result]  # a part by its number, from 0, which tells of its steps


class Keeper(Protocol):
    """Keeps the results of parts that are done, so that work which was stopped goes on."""

    def read(self, number: int, advance: Advance) -> Any:
        """The result of a part, and `advance` is told its steps; None if it is not kept.

        Raises UserError if it is damaged, or of other work.
        """

    def keep(self, number: int, result: Any) -> None:
        """Keep the result of a part."""


class NotKept:
    """Keeps nothing."""

    def read(self, number: int, advance: Advance) -> Any:
        return None

    def keep(self, number: int, result: Any) -> None:
        pass


@dataclass(frozen=True)
class WorkPart:
    number: int  # from 0
    of: int

    def __str__(self) -> str:
        return f"part {self.number + 1} of {self.of}"


@dataclass(frozen=True)
class Begun:
    """A worker has opened the work."""

    facts: Any
    parts: int
    steps: int
    version: str  # of specbench


@dataclass(frozen=True)
class Stepped:
    count: int


@dataclass(frozen=True)
class Done:
    result: Any


def carry_out(
    opening: Callable[[], Opened[Facts, Result]],
    label: str,
    device: str,
    staffing: Staffing | None,
    keeping: Callable[[Facts], Keeper] = lambda facts: NotKept(),
) -> tuple[Facts, list[Result]]:
    """The facts of the work, and the results of all parts in their order.

    Args:
        opening: opens the work; what can be sent to a worker, such as a function of a module.
        label: of the progress bar.
        device: that the models are placed on.
        staffing: the workers; None: this process alone.
        keeping: makes what keeps the results of this process or of the workers, from the facts of the work.

    Raises:
        UserError: the work cannot be opened, no worker is left, or what is kept is of other work.
    """
    if staffing is None:
        opened = opening()
        keeper = keeping(opened.facts)
        with progress(label, opened.steps) as advance:
            results = _kept(keeper, opened.parts, advance)
            for number in range(opened.parts):
                if number not in results:
                    results[number] = opened.do(number, advance)
                    keeper.keep(number, results[number])
        return opened.facts, [results[number] for number in range(opened.parts)]
    start = starter(staffing, device)
    with start(partial(do_parts, opening), NOWHERE) as crew:
        parts = PartQueue(crew, keeping)
        before: list[int] = []
        while parts.begun is None:
            parts.hear(before.append)
        with progress(label, parts.begun.steps) as advance:
            advance(sum(before))
            while len(parts.results) < parts.begun.parts:
                parts.hear(advance)
    return parts.begun.facts, [parts.results[number] for number in range(parts.begun.parts)]


def _kept(keeper: Keeper, parts: int, advance: Advance) -> dict[int, Any]:
    """The results that are kept, by the number of the part."""
    read = ((number, keeper.read(number, advance)) for number in range(parts))
    return {number: result for number, result in read if result is not None}


class PartQueue(Queue[WorkPart]):
    """The parts that are not done, and the results of the others."""

    def __init__(self, crew: Crew, keeping: Callable[[Any], Keeper] = lambda facts: NotKept()) -> None:
        super().__init__(crew)
        self.begun: Begun | None = None
        self.results: dict[int, Any] = {}
        self.keeping = keeping
        self.keeper: Keeper = NotKept()

    def hear(self, advance: Advance) -> None:
        """Take what workers tell, and send them what they are to do next. Raises UserError as `heard` and `receive`."""
        for worker in self.heard():
            self._take(worker, self.receive(worker), advance)
        self.give(lambda part: part.number)

    def _take(self, worker: Worker, message: Any, advance: Advance) -> None:
        if isinstance(message, Begun):
            check_version(worker, message.version)
            worker.ready = True
            if self.begun is None:
                self.begun = message
                self.keeper = self.keeping(message.facts)
                self.results = _kept(self.keeper, message.parts, advance)
                left = (number for number in range(message.parts) if number not in self.results)
                self.waiting = deque(WorkPart(number, message.parts) for number in left)
        elif isinstance(message, Stepped):
            advance(message.count)
        elif isinstance(message, Done):
            self.results[worker.item.number] = message.result
            self.keeper.keep(worker.item.number, message.result)
            worker.item = None


def do_parts(opening: Callable[[], Opened[Any, Any]], driver: Connection, number: int) -> None:
    """Do the parts that the driver sends to worker `number`."""
    try:
        opened = opening()
        driver.send(Begun(opened.facts, opened.parts, opened.steps, version()))
        while True:
            driver.send(Done(opened.do(driver.recv(), lambda count: driver.send(Stepped(count)))))
    except (UserError, OSError):
        raise
    except Exception as error:  # what the worker prints is not kept; if the driver is gone, this raises OSError
        what = f"{type(error).__name__}: {brief(error)}"
        driver.send(Refused(f"worker {number}: {what}; without --workers it tells where"))
