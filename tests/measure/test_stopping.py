"""Signals that ask a run to stop: the first one waits for the document under way, if there is one.

Handlers are called here, as Python calls them; test_run.py sends real signals to the command.
"""

import os
import signal

import pytest

from specbench.measure.command import stop_requests

SIGNALS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGHUP": signal.SIGHUP}


@pytest.fixture(autouse=True)
def heard(monkeypatch):
    """SIGHUP ends a process, even if these tests run under nohup; no output of theirs is a terminal's."""
    monkeypatch.setattr(os, "isatty", lambda number: False)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def comes(number: int) -> None:
    """What a signal does that comes now."""
    handler = signal.getsignal(number)
    if handler != signal.SIG_IGN:
        handler(number, None)


@pytest.mark.parametrize("number", SIGNALS.values(), ids=SIGNALS)
def test_the_first_one_asks_and_the_second_one_stops(number):
    before = signal.getsignal(number)
    with stop_requests() as stopping:
        stopping.waits = True
        comes(number)
        assert stopping.requested
        with pytest.raises(KeyboardInterrupt):
            comes(number)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", SIGNALS.values(), ids=SIGNALS)
def test_the_first_one_stops_while_nothing_waits(number):
    with stop_requests() as stopping:
        with pytest.raises(KeyboardInterrupt):
            comes(number)
        assert not stopping.requested


def test_a_hangup_that_is_ignored_stays_ignored():
    """As under nohup: a terminal that is closed does not end the run."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_requests() as stopping:
        stopping.waits = True
        comes(signal.SIGHUP)
        assert not stopping.requested
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
