"""What every command shares of the terminal: one console, and progress for anything over two seconds.

Texts of models and data, and names from files, can hold what acts on a terminal instead of being seen. `plain` makes
that visible, and this console passes whatever it prints through it; what goes to stdout past it calls `plain` itself.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

QUIET_SECONDS = 10  # between lines where there is no terminal to draw a bar on
# C0 and C1 controls, line and paragraph separators, marks that turn the direction of what follows, tag characters, and
# surrogates, which no terminal can be sent.
ACTING = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)


def plain(text: str, keep: str = "") -> str:
    r"""The text with what acts on a terminal as visible escapes, such as \x1b and \u202e; but those in `keep` stay.

    `keep` is "" for what must stay on one line, else of newline and tab. Two texts can come out alike: this is to be
    read, not to be parsed.
    """

    def seen(found: re.Match[str]) -> str:
        char = found.group()
        if char in keep:
            return char
        if char in "\n\r\t":
            return repr(char)[1:-1]
        code = ord(char)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return ACTING.sub(seen, text)


class PlainConsole(Console):
    """A console on which no text acts: no markup, and only rich's own styles and cursor movements reach the terminal.

    What shall have a style is printed with `style`, or is a rich Text.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's, with every text passed through `plain`."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else plain(text, "\n"), style, control)


console = PlainConsole()


@contextmanager
def progress(label: str, total: int, aside: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar; yields a function that advances it by a count. `aside`: on stderr, as stdout is for programs."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=PlainConsole(stderr=True) if aside else console) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


class RunProgress:
    """Document, tokens/s, τ and acceptance so far, time left; a line now and then where there is no terminal."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
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
