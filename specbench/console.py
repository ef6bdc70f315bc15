"""What every command shares of the terminal: one console, and progress for anything over two seconds."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

console = Console(emoji=False)  # TASK:train: is no picture of a train
QUIET_SECONDS = 10  # between lines where there is no terminal to draw a bar on


@contextmanager
def progress(label: str, total: int, aside: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar; yields a function that advances it by a count. `aside`: on stderr, as stdout is for programs."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, emoji=False) if aside else console) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


class RunProgress:
    """Document, tokens/s, τ and acceptance so far, time left; a line now and then where there is no terminal."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rates]}"),
            TimeRemainingColumn(compact=True),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("loading", total=None, rates="")
        self._sums = {"committed": 0, "drafted": 0, "accepted": 0, "draft_rounds": 0, "draft_committed": 0}
        self._seconds = 0.0
        self._began = self._said = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        if not console.is_terminal:
            console.print("loading models and documents")
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def update(self, done: int, total: int, task: str, rounds: Sequence[dict[str, Any]]) -> None:
        """After document `done` of `total`, whose rounds are given. τ and acceptance are of the drafting methods."""
        for one in rounds:
            if one["round"] and not one["warmup"]:
                self._seconds += one["seconds"]
                for name in ("committed", "drafted", "accepted"):
                    self._sums[name] += one[name]
                if one["drafted"]:
                    self._sums["draft_rounds"] += 1
                    self._sums["draft_committed"] += one["committed"]
        s = self._sums
        rates = f"{s['committed'] / max(self._seconds, 1e-9):.0f} tok/s"
        if s["drafted"]:
            rates += f" τ {s['draft_committed'] / s['draft_rounds']:.2f} acc {s['accepted'] / s['drafted']:.0%}"
        self._bar.update(self._task, description=task, completed=done, total=total, rates=rates)
        now = time.monotonic()
        if self._first is None:
            self._first, self._began = done, now
        elif not console.is_terminal and (now - self._said > QUIET_SECONDS or done == total):
            left = (now - self._began) / (done - self._first) * (total - done)
            console.print(f"{task} {done}/{total}  {rates}  {left:.0f} s left", highlight=False)
            self._said = now
