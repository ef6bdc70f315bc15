"""The terminal: one console for all commands, and progress bars for anything that takes over two seconds.

Texts of models and data, and names from files, may hold control characters that act on a terminal. The console makes
them visible in everything it prints; code that writes to stdout by itself must call `plain`.
"""

import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

QUIET_SECONDS = 10  # between lines of progress if there is no terminal to draw a bar on
CLOSED_PIPE = 141  # the exit code of a command whose reader went away, as of a program that SIGPIPE ended
# C0 and C1 controls, line and paragraph separators, marks that change the direction of writing, tag characters, and
# surrogates, which cannot be sent to a terminal.
ACTING = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)


def plain(text: str, keep: str = "") -> str:
    r"""The text with control characters as visible escapes, such as \x1b and \u202e, except those in `keep`.

    `keep` may hold newline and tab. Two texts can become the same: the result is to be read, not parsed.
    """

    def escaped(match: re.Match[str]) -> str:
        char = match.group()
        if char in keep:
            return char
        if char in "\n\r\t":
            return repr(char)[1:-1]
        code = ord(char)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return ACTING.sub(escaped, text)


class PlainConsole(Console):
    """A console that prints every text as it is: no markup, no control characters but those of rich itself.

    For styled output, use the argument `style` or a rich Text.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def on_broken_pipe(self) -> None:
        """End the command without a word: nobody reads what it prints."""
        self.quiet = True
        leave_closed_pipe()

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Rich's segments, with every text passed through `plain`."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else plain(text, "\n"), style, control)


console = PlainConsole()


def leave_closed_pipe() -> NoReturn:
    """Exit as a program does whose output nobody reads any more; what is still to be written goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    raise SystemExit(CLOSED_PIPE)


def stdout_file() -> tuple[int, int] | None:
    """What identifies the file that stdout writes to; None if it is closed."""
    try:
        status = os.fstat(1)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def reader_has_gone() -> bool:
    """True if stdout is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def flush() -> None:
    """Write what waits to be written to stdout. Exits quietly if its reader has gone."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        leave_closed_pipe()


def say(line: str, style: str = "") -> None:
    """Print a line as it is: no highlighting, no wrapping."""
    console.print(line, style=style, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a text, wrapped, without highlighting."""
    console.print(text, highlight=False)


def warn(line: str) -> None:
    """Print a line in yellow."""
    say(line, "yellow")


@contextmanager
def progress(label: str, total: int, aside: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar, or lines at times if there is no terminal; yields a function that advances it by a count.

    With `aside` it is drawn on stderr.
    """
    drawn_on = PlainConsole(stderr=True) if aside else console
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=drawn_on, disable=not drawn_on.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        lines = _Lines(drawn_on, label, total)

        def advance(count: int) -> None:
            bar.advance(task, count)
            if not drawn_on.is_terminal:
                lines.advance(count)

        yield advance


class _Lines:
    """Progress by a line every QUIET_SECONDS, and one at the end of what took longer than that."""

    def __init__(self, drawn_on: Console, label: str, total: int) -> None:
        self._console, self._label, self._total = drawn_on, label, total
        self._done = 0
        self._began = self._printed = time.monotonic()

    def advance(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        said = self._printed > self._began and self._done >= self._total
        if not count or (now - self._printed <= QUIET_SECONDS and not said):
            return
        left = (now - self._began) / self._done * (self._total - self._done)
        self._console.print(f"{self._label} {self._done}/{self._total}  {duration(left)} left", highlight=False)
        self._printed = now


class RunProgress:
    """Progress of a run: document, tokens/s, τ and acceptance so far, time left; a line at times if no terminal."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rates]}"),
            TextColumn("{task.fields[left]}"),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("loading", total=None, rates="", left="")
        self._sums = {"committed": 0, "drafted": 0, "accepted": 0, "draft_rounds": 0, "draft_committed": 0}
        self._seconds, self._timed = 0.0, 0  # and the tokens that took them
        self._began = self._printed = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        if not console.is_terminal:
            console.print("loading models and documents")
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def update(
        self, done: int, total: int, task: str, rounds: Sequence[dict[str, Any]], left: float | None = None
    ) -> None:
        """Show document `done` of `total`, given its rounds as recorded; τ and acceptance are of drafting methods.

        `left` is the time that is left, in seconds; by default as long for every document as so far.
        """
        sums = self._sums
        for row in rounds:
            if row["round"] and not row["warmup"]:
                self._seconds += row.get("seconds") or 0.0
                self._timed += (row["committed"] or 0) if row.get("seconds") else 0
                for name in ("committed", "drafted", "accepted"):
                    sums[name] += row[name] or 0
                if row["drafted"] and row["committed"] is not None:  # a server may not tell what a round gave
                    sums["draft_rounds"] += 1
                    sums["draft_committed"] += row["committed"]
        rates = f"{self._timed / max(self._seconds, 1e-9):.0f} tok/s" if self._timed else ""
        if sums["draft_rounds"]:
            rates += f" τ {sums['draft_committed'] / sums['draft_rounds']:.2f}"
        if sums["drafted"]:
            rates += f" acc {sums['accepted'] / sums['drafted']:.0%}"
        rates = rates.strip()
        now = time.monotonic()
        first = self._first is None or done == self._first
        if self._first is None or first:
            self._first, self._began = done, now
        elif left is None:
            left = (now - self._began) / (done - self._first) * (total - done)
        words = f"{duration(left)} left" if left is not None else ""
        self._bar.update(self._task, description=task, completed=done, total=total, rates=rates, left=words)
        if not (first or console.is_terminal) and (now - self._printed > QUIET_SECONDS or done == total):
            note(f"{task} {done}/{total}  {rates}  {words}")
            self._printed = now


def duration(seconds: float) -> str:
    """A time in words: 45 s, 12 min, 3 h 20 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
