"""When requests come: by a Poisson process, evenly, or as a file tells."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specbench.base.errors import UserError
from specbench.base.hashes import short_hash
from specbench.base.untrusted import is_file, read_text

POISSON, CONSTANT = "poisson", "constant"
MOST_TRACE = 10_000_000  # bytes
LATEST = 1e9  # seconds, of a trace
_SECONDS = re.compile(r"\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Arrivals:
    """A kind of arrivals: poisson, constant, or the path of a trace, whose `gaps` are the seconds between requests."""

    kind: str
    gaps: tuple[float, ...] = ()

    @classmethod
    def of(cls, kind: str) -> "Arrivals":
        """Raises UserError for a file that is no trace."""
        return cls(kind, () if kind in (POISSON, CONSTANT) else tuple(trace_gaps(Path(kind)).tolist()))

    @property
    def digest(self) -> str:
        """Of a trace, a hash of what it tells; empty for others."""
        return short_hash(repr(self.gaps)) if self.gaps else ""

    def times(self, rate: float, count: int, seed: int) -> NDArray[np.float64]:
        """The seconds [count] at which requests come, the first at 0; `rate` in requests a second, inf: all at once.

        A trace is stretched to the rate, and begins again at its end. Raises UserError if so many of its requests come
        at one time.
        """
        if np.isinf(rate):
            return np.zeros(count)
        if self.kind == CONSTANT:
            return np.arange(count) / rate
        if self.kind == POISSON:
            gaps = np.random.default_rng(seed).exponential(1 / rate, count)
            return np.cumsum(gaps) - gaps[0]
        chosen = np.resize(np.array(self.gaps), count)
        times = np.cumsum(chosen) - chosen[0]
        if count > 1 and times[-1] == 0:
            raise UserError(
                f"{self.kind}: its first {count} requests come at one time; take another trace, or --rate inf"
            )
        return times * ((count - 1) / rate / times[-1]) if count > 1 else times


def trace_gaps(path: Path) -> NDArray[np.float64]:
    """The seconds before each request of a trace; before the first, the mean of the others.

    Raises:
        UserError: there is no such file, or a line is not a number of seconds, at least that of the line before.
    """
    if not is_file(path):
        raise UserError(
            f"--arrivals {path}: choose {POISSON}, {CONSTANT} or a file with one arrival time in seconds on each line"
        )
    lines = [line.strip() for line in read_text(path, MOST_TRACE).splitlines()]
    times: list[float] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        if not _SECONDS.fullmatch(line) or not float(line) <= LATEST:
            raise UserError(
                f"{path}, line {number}: {line[:40]!r} is not a time; write seconds from 0 to {LATEST:.0e}, one a line"
            )
        if times and float(line) < times[-1]:
            raise UserError(f"{path}, line {number}: {line} is before the time of the line above; sort the lines")
        times.append(float(line))
    if len(times) < 2 or times[-1] == times[0]:
        raise UserError(
            f"{path} is not a trace of arrivals: it needs two different numbers of seconds or more, one a line"
        )
    gaps = np.diff(np.array(times))
    return np.concatenate([[gaps.mean()], gaps])
