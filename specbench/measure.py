"""The only reader of clocks: forward passes, rounds, whole samples; and memory.

On a GPU a forward pass is bracketed by events that are read once, after the sample, so nothing waits for the device
inside a round. Rounds end when the host knows their tokens, so the host's clock serves for them everywhere.
"""

import resource
import time
from dataclasses import dataclass, field

import torch

from specbench.decoding.types import NotFinite

now = time.perf_counter  # seconds; for progress and bench only


@dataclass
class Forward:
    """One forward pass: `width` tokens behind `context` cached ones."""

    model: str
    width: int
    context: int
    seconds: float = 0.0
    began: float = 0.0  # on the host

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self.began


@dataclass
class DeviceForward(Forward):
    """One on a GPU, timed by events on the stream that it runs on."""

    events: tuple[torch.cuda.Event, ...] = ()

    def __enter__(self) -> None:
        self.events = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        self.events[0].record()

    def __exit__(self, *error: object) -> None:
        self.events[1].record()

    def read(self) -> None:
        """Take the time from the events; the device must have passed them."""
        self.seconds = self.events[0].elapsed_time(self.events[1]) / 1000


@dataclass(frozen=True)
class Lap:
    """What happened between two round ends: wall seconds, and the forward passes."""

    seconds: float
    forwards: list[Forward]

    def count(self, model: str) -> int:
        return sum(f.model == model for f in self.forwards)

    def time(self, model: str) -> float:
        """Seconds in forwards of one model."""
        return sum(f.seconds for f in self.forwards if f.model == model)

    @property
    def busy(self) -> float:
        """Seconds in which a forward was under way; those at the same time count once.

        On a GPU, whose events do not tell when, no more than the whole.
        """
        if any(isinstance(f, DeviceForward) for f in self.forwards):
            return min(self.seconds, sum(f.seconds for f in self.forwards))
        total, until = 0.0, 0.0
        for f in sorted(self.forwards, key=lambda f: f.began):
            end = f.began + f.seconds
            total += max(0.0, end - max(until, f.began))
            until = max(until, end)
        return total


@dataclass
class Stopwatch:
    """Times one sample at a time: `start`, a `lap` at each round's end, then `laps`. A `Watch` for sessions.

    Forwards may run at the same time, in threads.
    """

    device: torch.device
    _ends: list[tuple[float, int]] = field(default_factory=list)  # host time, forwards so far
    _forwards: list[Forward] = field(default_factory=list)
    _began: float = 0.0
    _seen: list[tuple[str, int, torch.Tensor]] = field(default_factory=list)  # on the device

    def start(self) -> None:
        self._forwards, self._ends, self._seen = [], [], []
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        self._began = time.perf_counter()

    def forward(self, model: str, width: int, context: int) -> Forward:
        kind = DeviceForward if self.device.type == "cuda" else Forward
        self._forwards.append(found := kind(model, width, context))
        return found

    def lap(self) -> None:
        """A round has ended: its tokens are on the host."""
        self._ends.append((time.perf_counter(), len(self._forwards)))

    def saw(self, model: str, position: int, highest: torch.Tensor) -> None:
        self._seen.append((model, position, highest))

    def not_finite(self) -> NotFinite | None:
        """The first logits that were seen not to be finite; waits for the device."""
        if not self._seen:
            return None
        bad = (~torch.cat([highest.float() for _, _, highest in self._seen]).isfinite()).nonzero().flatten().tolist()
        at = bad[0] if bad else -1
        for model, position, highest in self._seen:
            if 0 <= at < len(highest):
                return NotFinite(model, position + at)
            at -= len(highest)
        return None

    def laps(self) -> list[Lap]:
        """Every round so far; waits for the device. Raises NotFinite."""
        if found := self.not_finite():
            raise found
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


def peak_memory(device: torch.device) -> int:
    """Bytes: of the GPU since the last `start`; on a CPU the process' largest resident size so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
