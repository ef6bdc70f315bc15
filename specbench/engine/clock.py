"""Measures the time of forward passes, rounds and whole samples, and peak memory: every time in a table.

On a GPU two events bracket a forward pass. They are read once, after the sample, so nothing waits for the device inside
a round. Rounds end when the host knows their tokens, so the host's clock times them on every device.
"""

import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from specbench.engine.types import NotFinite, Passed

MASKS = "masks"  # as the model of what a constraint takes on the host, which is no forward
now = time.perf_counter  # seconds; also for servers, shared prefixes, checks of the machine, and studies


@dataclass
class Forward:
    """One forward pass that feeds `width` tokens after `context` cached ones, or a call of several passes."""

    model: str
    width: int
    context: int
    seconds: float = 0.0
    began: float = 0.0  # on the host
    passes: int = 1
    first: float = 0.0  # seconds of the first of several passes; 0: not known

    def __enter__(self) -> Passed:
        self.began = time.perf_counter()
        return self._passed

    def _passed(self) -> None:
        self.first = self.first or time.perf_counter() - self.began

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self.began


@dataclass
class DeviceForward(Forward):
    """A forward pass on a GPU, timed by events on its stream."""

    events: tuple[torch.cuda.Event, ...] = ()

    def __enter__(self) -> Passed:
        self.events = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        self.events[0].record()
        return lambda: None  # a pass is on the device when it has returned on the host

    def __exit__(self, *error: object) -> None:
        self.events[1].record()

    def read(self) -> None:
        """Set the time from the events, which the device must have passed."""
        self.seconds = self.events[0].elapsed_time(self.events[1]) / 1000


@dataclass
class SharedForward(Forward):
    """A forward pass of one text of a batch; its share of the time, if it was computed with those of others."""

    whole: Forward | None = None  # None: it was computed alone
    rows: int = 1

    def read(self) -> None:
        """Set the time from the whole's, which must have been read."""
        if self.whole:
            self.seconds, self.began = self.whole.seconds / self.rows, self.whole.began


@dataclass(frozen=True)
class Lap:
    """The time between two round ends: wall seconds, and the forward passes in it."""

    seconds: float
    forwards: Sequence[Forward]

    def count(self, model: str) -> int:
        """The number of forward passes of one model."""
        return sum(f.passes for f in self.forwards if f.model == model)

    def time(self, model: str) -> float:
        """Seconds in forwards of one model."""
        return sum(f.seconds for f in self.forwards if f.model == model)

    def first(self, model: str) -> float | None:
        """Seconds of the first forward pass of one model; None if there is none, or if they are not known."""
        first = next((f for f in self.forwards if f.model == model), None)
        return None if first is None else first.seconds if first.passes == 1 else first.first or None

    @property
    def busy(self) -> float:
        """Seconds in which at least one forward of a model was running.

        On a GPU, whose events do not say when a forward began, and for shares of a batch, the sum of all forwards, and
        at most the whole lap.
        """
        forwards = [f for f in self.forwards if f.model != MASKS]
        if any(isinstance(f, DeviceForward | SharedForward) for f in forwards):
            return min(self.seconds, sum(f.seconds for f in forwards))
        total, until = 0.0, 0.0
        for f in sorted(forwards, key=lambda f: f.began):
            end = f.began + f.seconds
            total += max(0.0, end - max(until, f.began))
            until = max(until, end)
        return total


class Highest:
    """The highest logits that models gave, to check later that they were finite."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._seen: list[tuple[str, int, torch.Tensor]] = []

    def saw(self, model: str, position: int, highest: torch.Tensor) -> None:
        self._seen.append((model, position, highest))

    def not_finite(self) -> NotFinite | None:
        """The error for the first logits that were not finite; None if all were. Waits for the device."""
        if not self._seen:
            return None
        bad = (~torch.cat([highest.float() for _, _, highest in self._seen]).isfinite()).nonzero().flatten().tolist()
        index = bad[0] if bad else -1
        for model, position, highest in self._seen:
            if 0 <= index < len(highest):
                return NotFinite(model, position + index)
            index -= len(highest)
        return None


@dataclass
class Stopwatch:
    """Times one sample at a time: `start`, a `lap` at each round's end, then `laps`. It is a `Watch` for sessions.

    Forwards may run at the same time, in threads.
    """

    device: torch.device
    _ends: list[tuple[float, int]] = field(default_factory=list)  # host time, forwards so far
    _forwards: list[Forward] = field(default_factory=list)
    _began: float = 0.0
    highest: Highest = field(default_factory=Highest)

    def __post_init__(self) -> None:
        # Kept: after a forward, when caches are cold, asking a device for its type takes as long as two such objects.
        self._kind = DeviceForward if self.device.type == "cuda" else Forward

    def start(self) -> None:
        """Begin a sample: forget the last one, and wait until the device is idle."""
        self._forwards, self._ends = [], []
        self.highest.clear()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        self._began = time.perf_counter()

    def forward(self, model: str, width: int, context: int, passes: int = 1) -> Forward:
        kind = Forward if model == MASKS else self._kind
        self._forwards.append(forward := kind(model, width, context, passes=passes))
        return forward

    def lap(self) -> None:
        """End a round, whose tokens are on the host."""
        self._ends.append((time.perf_counter(), len(self._forwards)))

    def saw(self, model: str, position: int, highest: torch.Tensor) -> None:
        self.highest.saw(model, position, highest)

    def laps(self) -> list[Lap]:
        """The laps of all rounds so far. Waits for the device. Raises NotFinite."""
        if error := self.highest.not_finite():
            raise error
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            for forward in self._forwards:
                if isinstance(forward, DeviceForward):
                    forward.read()
        starts = [(self._began, 0), *self._ends]
        return [
            Lap(end - begin, self._forwards[first:last])
            for (begin, first), (end, last) in zip(starts, self._ends, strict=False)
        ]


@dataclass
class BatchStep:
    """A round of several texts: its seconds, and the forwards in it."""

    rows: int
    forwards: list[Forward] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def spare(self) -> float:
        """Each row's share of the seconds outside of forwards."""
        return max(0.0, self.seconds - sum(f.seconds for f in self.forwards)) / self.rows


class RowStopwatch:
    """The `Watch` of one text in a batch. A forward's time is shared equally by the rows that it was for, and the rest
    of a step's time by all its rows: the rounds of all texts together take as long as the steps did.
    """

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin a text: forget the last one."""
        self.highest = Highest()
        self.forwards: list[SharedForward] = []
        self.ends: list[tuple[BatchStep, int]] = []  # of each round: its step, forwards so far

    def forward(self, model: str, width: int, context: int, passes: int = 1) -> Forward:
        self.forwards.append(forward := SharedForward(model, width, context, passes=passes))
        return forward

    def saw(self, model: str, position: int, highest: torch.Tensor) -> None:
        self.highest.saw(model, position, highest)

    def laps(self) -> list[Lap]:
        """The laps of all rounds so far, after `BatchStopwatch.read`. Raises NotFinite."""
        if error := self.highest.not_finite():
            raise error
        for forward in self.forwards:
            forward.read()
        starts = [0, *(count for _, count in self.ends)]
        laps = []
        for first, (step, last) in zip(starts, self.ends, strict=False):
            forwards = self.forwards[first:last]
            laps.append(Lap(step.spare + sum(f.seconds for f in forwards), forwards))
        return laps


class Watched(Protocol):
    """A row of a batch."""

    watch: RowStopwatch | None


@dataclass
class BatchStopwatch:
    """Times the steps of a batch and the forwards in them."""

    device: torch.device
    _step: BatchStep | None = None
    _unread: list[DeviceForward] = field(default_factory=list)

    @contextmanager
    def step(self, rows: Sequence[Watched]) -> Iterator[None]:
        """Time a round of these rows, which ends when the host knows all their tokens."""
        step = self._step = BatchStep(len(rows))
        began = time.perf_counter()
        yield
        step.seconds = time.perf_counter() - began
        for row in rows:
            if row.watch:
                before = row.watch.ends[-1][1] if row.watch.ends else 0
                step.forwards += [forward for forward in row.watch.forwards[before:] if not forward.whole]
                row.watch.ends.append((step, len(row.watch.forwards)))

    @contextmanager
    def forward(self, rows: Sequence[Watched]) -> Iterator[None]:
        """Time a forward of these rows, each of which has begun its own, or reads a shared prefix; within a step."""
        assert self._step
        whole = DeviceForward("", 0, 0) if self.device.type == "cuda" else Forward("", 0, 0)
        with whole:
            yield
        self._step.forwards.append(whole)
        if isinstance(whole, DeviceForward):
            self._unread.append(whole)
        for row in rows:
            if row.watch and row.watch.forwards and not row.watch.forwards[-1].whole:
                row.watch.forwards[-1].whole, row.watch.forwards[-1].rows = whole, len(rows)

    def read(self) -> None:
        """Read the times of all forwards so far. Waits for the device."""
        if self._unread:
            torch.cuda.synchronize(self.device)
        for forward in self._unread:
            forward.read()
        self._unread.clear()


def free_memory(device: torch.device) -> int:
    """Bytes of free memory: of the GPU, or of this machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: of the GPU since the last `start`; on a CPU the process' largest resident size so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
