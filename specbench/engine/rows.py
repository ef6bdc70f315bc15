"""Several texts at once: each is decoded by a method of its own, and the forwards of all are computed together.

A step is a round of every text. Each text's round runs in a greenlet until it needs a forward. When all wait, the
forwards of one model are computed as one, those of the smallest model first: drafts of different lengths end before any
of them is verified. So a method is the same code whether one text is decoded or many.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from specbench.engine.clock import BatchStopwatch, RowStopwatch
from specbench.engine.generate import Ending
from specbench.engine.runtimes.batched import RowRunner, StateRow, TextGreenlet
from specbench.engine.runtimes.slots import Feed
from specbench.engine.types import Round

Member = TypeVar("Member")  # what decodes one text at a time
Text = TypeVar("Text")


@dataclass(eq=False)
class Row:
    """A text that is being decoded, by the rounds that `decode_text` yields until `ending` says that it has ended."""

    rounds: Iterator[Round]
    ending: Ending
    watch: RowStopwatch | None = None  # the watch of the method that decodes it; None: it is not timed
    finished: list[Round] = field(default_factory=list)
    error: Exception | None = None  # what ended it early
    shared: Any = None  # what its method last shared with those of the other rows
    runners: set[RowRunner | StateRow] = field(default_factory=set)

    @property
    def ended(self) -> bool:
        return bool(self.ending.reason or self.error)

    @property
    def damaged(self) -> bool:
        """True if caches may hold what is not finite. On a GPU that is seen only when the text has ended."""
        return bool(self.error or (self.watch and self.watch.highest.not_finite()))


class Batch:
    """Rows that decode together; they join and leave between steps.

    Prompts are read together, but `apart` from the rounds of texts that have begun, so that both have times of their
    own; else in the same forwards.
    """

    def __init__(self, stopwatch: BatchStopwatch, apart: bool = True) -> None:
        self.stopwatch, self.apart = stopwatch, apart
        self.rows: list[Row] = []

    def join(self, row: Row) -> None:
        """Add a text. Its prompt is read in the next step."""
        if row.watch:
            row.watch.start()
        self.rows.append(row)

    def step(self) -> list[Row]:
        """Give every row its next round, in place; the rows that ended leave, and are returned.

        An error of a method ends its row, one of a forward all rows that it was for.
        """
        groups = [self.rows.copy()]
        if self.apart:
            groups = [[row for row in self.rows if bool(row.finished) == begun] for begun in (False, True)]
        for group in groups:
            if group:
                with self.stopwatch.step(group):
                    next_rounds(group, self.stopwatch, self.rows)
        left = [row for row in self.rows if row.ended]
        self.rows = [row for row in self.rows if not row.ended]
        for row in left:
            damaged = row.damaged
            for runner in row.runners:
                runner.leave(damaged)
        return left


class Seats(Generic[Member, Text]):
    """Members that decode texts together, each one at a time, in the rows of a batch."""

    def __init__(self, batch: Batch, members: Iterable[Member]) -> None:
        self.batch = batch
        self.free = deque(members)
        self.busy: dict[Row, tuple[Member, Text]] = {}

    def seat(self, text: Text, begin: Callable[[Member, Text], Row]) -> None:
        """Let a free member begin a text, whose row joins the batch."""
        member = self.free.popleft()
        row = begin(member, text)
        self.busy[row] = member, text
        self.batch.join(row)

    def step(self) -> list[tuple[Row, Member, Text]]:
        """Give every row its next round; the rows that ended, with their members, which are free again."""
        ended = [(row, *self.busy.pop(row)) for row in self.batch.step()]
        self.free.extend(member for _, member, _ in ended)
        return ended

    def decode(self, texts: Iterable[Text], begin: Callable[[Member, Text], Row]) -> Iterator[tuple[Row, Member, Text]]:
        """Decode texts, each from when a member is free; yields each when it has ended."""
        waiting = deque(texts)
        while waiting or self.busy:
            while waiting and self.free:
                self.seat(waiting.popleft(), begin)
            yield from self.step()


def failing(error: Exception) -> Iterator[Round]:
    """The rounds of a text that could not begin: the row's first one raises `error`."""
    raise error
    yield


@torch.inference_mode()
def next_rounds(rows: Sequence[Row], stopwatch: BatchStopwatch, together: Sequence[Row]) -> None:
    """Decode one round of every row, in place. `together`: all rows of the batch."""
    jobs = {TextGreenlet(partial(next, row.rounds)): row for row in rows}
    for job, row in jobs.items():
        job.text, job.texts = row, together
    waiting: dict[TextGreenlet, tuple[RowRunner | StateRow, Feed]] = {}

    def resume(job: TextGreenlet, go_on: Callable[[], Any]) -> None:
        """Let a job go on until it waits for a forward, or until its round is over."""
        try:
            result = go_on()
        except Exception as error:
            jobs[job].error = error
            return
        if job.dead:
            jobs[job].finished.append(result)
        else:
            waiting[job] = result

    for job in jobs:
        resume(job, job.switch)
    while waiting:
        group = smallest(waiting)
        fed = [waiting.pop(job) for job in group]
        for job, (runner, _) in zip(group, fed, strict=True):
            jobs[job].runners.add(runner)
        try:
            with stopwatch.forward([jobs[job] for job in group]):
                answers = fed[0][0].rows.forward(fed)
        except Exception as error:
            for job in group:
                resume(job, partial(job.throw, error))
            continue
        for job, answer in zip(group, answers, strict=True):
            resume(job, partial(job.switch, answer))


def smallest(waiting: dict[TextGreenlet, tuple[RowRunner | StateRow, Feed]]) -> list[TextGreenlet]:
    """The jobs that wait for the smallest model, of those whose forwards can be computed as one.

    Of models that are equally large, the last one: methods name their target first.
    """
    kinds: dict[tuple[Any, ...], list[TextGreenlet]] = {}
    for job, (runner, feed) in waiting.items():
        kinds.setdefault((runner.rows, tuple(feed.hidden), feed.features is None), []).append(job)
    return min(kinds.items(), key=lambda kind: (kind[0][0].size, -kind[0][0].order))[1]
