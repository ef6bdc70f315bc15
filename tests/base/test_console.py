"""Progress where there is no terminal: lines at times, and none for what is short."""

import pytest

from specbench.base import console
from specbench.base.console import progress


@pytest.fixture
def clock(monkeypatch):
    """A function that lets seconds pass."""
    now = [1000.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])

    def later(seconds):
        now[0] += seconds

    return later


@pytest.mark.parametrize("aside", (False, True))
def test_a_line_comes_every_ten_seconds_and_at_the_end(clock, capsys, aside):
    with progress("calibrating", 40, aside) as advance:
        for _ in range(40):
            clock(1.0)
            advance(1)
    said, other = capsys.readouterr()[:: -1 if aside else 1]
    assert said.splitlines() == [
        "calibrating 11/40  29 s left",
        "calibrating 22/40  18 s left",
        "calibrating 33/40  7 s left",
        "calibrating 40/40  0 s left",
    ]
    assert not other


def test_what_is_short_says_nothing(clock, capsys):
    with progress("calibrating", 4) as advance:
        for _ in range(4):
            clock(2.0)
            advance(1)
        advance(0)
    assert capsys.readouterr() == ("", "")
