"""The stopwatch under a clock that only the test moves."""

import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from specbench.engine.clock import BatchStopwatch, DeviceForward, Forward, Lap, RowStopwatch, Stopwatch, peak_memory


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch):
    fake = Clock()
    monkeypatch.setattr(time, "perf_counter", fake)
    return fake


def forward(watch, clock, model, seconds, width=1, context=0):
    with watch.forward(model, width, context):
        clock.time += seconds


def test_forwards_belong_to_their_round_and_model(clock):
    watch = Stopwatch(torch.device("cpu"))
    watch.start()
    clock.time += 0.5
    forward(watch, clock, "draft", 1, width=7)
    forward(watch, clock, "target", 2, width=7)
    watch.lap()
    forward(watch, clock, "draft", 4)
    clock.time += 0.25
    forward(watch, clock, "draft", 8)
    forward(watch, clock, "target", 16, width=3, context=7)
    watch.lap()
    clock.time += 3
    watch.lap()
    forward(watch, clock, "target", 99)  # behind the last lap: no round's

    first, second, third = watch.laps()
    assert [lap.seconds for lap in (first, second, third)] == [3.5, 28.25, 3]
    assert [(lap.count("draft"), lap.count("target")) for lap in (first, second, third)] == [(1, 1), (2, 1), (0, 0)]
    assert [(lap.time("draft"), lap.time("target")) for lap in (first, second, third)] == [(1, 2), (12, 16), (0, 0)]
    assert first.count("other") == 0 and first.time("other") == 0
    assert [(f.model, f.width, f.context) for f in second.forwards] == [
        ("draft", 1, 0),
        ("draft", 1, 0),
        ("target", 3, 7),
    ]


def test_the_first_forward_of_a_model(clock):
    forwards = [Forward("target", 1, 0, 9.0), Forward("draft", 2, 0, 3.0), Forward("draft", 1, 2, 1.0)]
    lap = Lap(20.0, forwards)
    assert (lap.first("draft"), lap.first("target"), lap.first("arbitrator")) == (3.0, 9.0, None)
    assert Lap(20.0, [Forward("draft", 1, 0, 3.0, passes=4)]).first("draft") is None  # one call: its first is not known
    watch = Stopwatch(torch.device("cpu"))
    watch.start()
    clock.time += 1
    with watch.forward("draft", 3, 0, 3) as passed:
        for seconds in (4, 2, 2):
            clock.time += seconds
            passed()
    watch.lap()
    assert (watch.laps()[0].first("draft"), watch.laps()[0].time("draft")) == (4, 8)


def test_laps_add_up_to_the_whole(clock):
    watch = Stopwatch(torch.device("cpu"))
    watch.start()
    for i in range(1, 6):
        forward(watch, clock, "target", i)
        clock.time += 0.5
        watch.lap()
    laps = watch.laps()
    assert sum(lap.seconds for lap in laps) == 15 + 2.5 == clock.time - 100
    assert sum(lap.time("target") for lap in laps) == 15


def test_start_forgets_the_former_sample(clock):
    watch = Stopwatch(torch.device("cpu"))
    watch.start()
    forward(watch, clock, "target", 5)
    watch.lap()
    clock.time += 1000
    watch.start()
    forward(watch, clock, "draft", 2)
    watch.lap()
    (lap,) = watch.laps()
    assert (lap.seconds, lap.count("target"), lap.time("draft")) == (2, 0, 2)


def test_a_forward_that_raises_is_closed(clock):
    watch = Stopwatch(torch.device("cpu"))
    watch.start()
    with pytest.raises(RuntimeError, match="broken"), watch.forward("target", 1, 0):
        clock.time += 1
        raise RuntimeError("broken")
    forward(watch, clock, "target", 2)
    watch.lap()
    (lap,) = watch.laps()
    assert (lap.count("target"), lap.time("target")) == (2, 3)


def test_what_a_text_of_a_batch_computes_alone_is_its_own_time(clock):
    """A step of 10 s: two texts share a forward of 4 s, one has another of 3 s for itself; the rest is halved."""
    watches = [RowStopwatch(), RowStopwatch()]
    rows, stopwatch = [SimpleNamespace(watch=watch) for watch in watches], BatchStopwatch(torch.device("cpu"))
    with stopwatch.step(rows):
        forward(watches[0], clock, "arbitrator", 3)
        with ExitStack() as begun:
            for watch in watches:
                begun.enter_context(watch.forward("target", 1, 0))
            with stopwatch.forward(rows):
                clock.time += 4
        clock.time += 3
    stopwatch.read()
    (one,), (other,) = (watch.laps() for watch in watches)
    assert (one.time("arbitrator"), one.time("target"), one.seconds) == (3, 2, 6.5)
    assert (other.time("arbitrator"), other.time("target"), other.seconds) == (0, 2, 3.5)


def test_no_laps():
    watch = Stopwatch(torch.device("cpu"))
    watch.start()
    assert watch.laps() == []


def test_peak_memory_is_in_bytes():
    assert 50e6 < peak_memory(torch.device("cpu")) < 200e9  # a process that holds torch


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_events_on_a_gpu():
    device = torch.device("cuda")
    a = torch.randn(4096, 4096, device=device)
    watch = Stopwatch(device)
    watch.start()
    for _ in range(3):
        with watch.forward("target", 1, 0):
            a @ a
        a[0, 0].item()
        watch.lap()
    laps = watch.laps()
    assert len(laps) == 3 and all(0 < lap.time("target") <= lap.seconds for lap in laps)
    assert peak_memory(device) >= a.nbytes


def test_forwards_at_the_same_time_are_timed_each_by_its_own(clock):
    watch = Stopwatch(torch.device("cpu"))
    watch.start()
    one, other = watch.forward("draft", 1, 0), watch.forward("target", 1, 0)
    one.__enter__()
    clock.time += 1
    other.__enter__()
    clock.time += 2
    one.__exit__(None, None, None)
    clock.time += 4
    other.__exit__(None, None, None)
    watch.lap()
    (lap,) = watch.laps()
    assert (lap.time("draft"), lap.time("target"), lap.seconds) == (3, 6, 7)
    assert lap.busy == 7  # two seconds of both count once
    watch.start()
    forward(watch, clock, "draft", 1)
    clock.time += 5
    forward(watch, clock, "target", 2)
    watch.lap()
    assert watch.laps()[0].busy == 3


def test_time_within_a_longer_forward_counts_once():
    """From 0 to 10, 1 to 2, 3 to 5 and 8 to 12: busy until 12."""
    spans = ((0, 10), (1, 2), (3, 5), (8, 12))
    assert Lap(20.0, [Forward("target", 1, 0, end - began, began) for began, end in spans]).busy == 12


def test_forwards_of_a_gpu_are_busy_no_longer_than_the_round():
    """Its events do not tell when they began, so those at the same time are counted twice, up to the whole."""
    forwards = [DeviceForward(model, 1, 0, seconds) for model, seconds in (("target", 0.75), ("draft", 0.5))]
    assert Lap(1.0, forwards).busy == 1.0 and Lap(2.0, forwards).busy == 1.25
