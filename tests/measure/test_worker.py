"""A worker of a pool, without its process: what it tells, and that it stops when the driver asks."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from echoing import lock_of_bars

from specbench.measure import crew, gate, loop, prepare, shards, worker
from specbench.measure.worker import Advanced, Ended, Given
from specbench.results.shard import Shard


class Driver:
    """The other end of a worker's line: what it sends, then it hangs up."""

    def __init__(self, *sends) -> None:
        self.sends, self.heard = list(sends), []

    def recv(self):
        if not self.sends:
            raise EOFError
        return self.sends.pop(0)

    def poll(self):
        return bool(self.sends)

    def send(self, what):
        self.heard.append(what)


def test_what_comes_while_it_decodes_asks_it_to_stop(monkeypatch):
    """It is sent a shard, finishes a document, and then is asked to stop."""
    work = SimpleNamespace(pair=SimpleNamespace(device=torch.device("cpu")), whole=range(6))
    monkeypatch.setattr(gate, "admit", lambda plan: plan)
    monkeypatch.setattr(prepare, "prepare", lambda admitted, folder: work)
    monkeypatch.setattr(shards, "places", lambda work: (range(3), "why"))
    driver, go_on = Driver(Given(Shard(2, 3), Path("place"))), []
    rounds = [{"round": 1, "warmup": False, "committed": 4, "tokens": [1, 2, 3, 4]}]

    def execute(plan, place, report, pair, shard, worker):
        assert (place, shard, worker) == (Path("place"), Shard(2, 3), 7)
        for done in (1, 2):
            go_on.append(report(SimpleNamespace(done=done, request=SimpleNamespace(task="one"), rounds=rounds)))
            driver.sends.append(None)
        return False

    monkeypatch.setattr(loop, "execute", execute)
    with pytest.raises(EOFError):
        worker.decode(None, driver, 7)
    assert go_on == [True, False]
    ready, *advanced, ended = driver.heard
    assert (ready.places, ready.documents) == (3, 6) and ended == Ended(False)
    assert [(one.done, one.task) for one in advanced] == [(1, "one"), (2, "one")]
    assert isinstance(advanced[0], Advanced) and advanced[0].rounds[0]["committed"] == 4
    assert "tokens" not in advanced[0].rounds[0], "only what the progress bar shows"


def test_a_worker_that_is_ended_leaves_no_semaphore():
    """Its driver would warn of one at its end: bars have a lock for several processes, if nobody gives them another."""
    with crew.started(lock_of_bars, crew.NOWHERE, [{}]) as everyone:
        assert everyone.workers[0].line.recv() == "RLock"
