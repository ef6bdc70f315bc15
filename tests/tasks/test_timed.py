"""Answers that cannot be scored count as wrong, and the others are scored."""

import os
import time
from multiprocessing.connection import Connection

import pytest

from specbench.config import SUITES
from specbench.tasks import timed
from specbench.tasks.harness import TaskChoice, Tasks
from specbench.tasks.timed import GaveUp, each


def test_results_come_in_order() -> None:
    assert list(each(divmod, [(7, 2), (9, 4)])) == [(3, 1), (2, 1)]
    assert list(each(divmod, [])) == []


def test_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "ANSWER_SECONDS", 0.3)

    def trouble(number: int) -> int:
        if number == 1:
            time.sleep(60)
        if number == 2:
            os._exit(0)
        return 10 // (number - 3)

    listed = list(each(trouble, [(n,) for n in range(6)]))
    assert listed[1:4] == [
        GaveUp("took longer than 0.3 s"),
        GaveUp("ended its process"),
        GaveUp("raised ZeroDivisionError"),
    ]
    assert [listed[0], *listed[4:]] == [-4, 10, 5]


def test_a_child_stays_for_the_next_call() -> None:
    (first,), (again,) = each(os.getpid, [()]), each(os.getpid, [()])
    assert first == again != os.getpid()
    assert list(each(divmod, [(7, 2)])) == [(3, 1)]
    assert list(each(os.getpid, [()])) != [first]


def test_an_interrupted_job_leaves_no_result_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(number: int) -> int:
        return number

    def interrupt(pipe: Connection, seconds: float) -> bool:
        """Stand in for Ctrl-C while the result comes."""
        raise KeyboardInterrupt

    assert list(each(same, [(0,)])) == [0]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Connection, "poll", interrupt)
        list(each(same, [(1,)]))
    assert list(each(same, [(2,)])) == [2]


def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "MEMORY_BYTES", 64 << 20)
    assert list(each(bytearray, [(256 << 20,)])) == [GaveUp("raised MemoryError")]


TOWERS = [r"\boxed{" + r"\frac{1}{" * 5000 + "2" + "}" * 5001, r"\boxed{9^{9^{9^{9}}}}", r"\boxed{100000000!}"]


def test_hostile_mathematics_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    choice = TaskChoice("pocket_math500", 0, 64, None, "", None)
    suite = Tasks([choice], task_folder=SUITES / "tasks", data_dir=None, limit=4, seed=1, chat=None)
    right = suite._instances["pocket_math500"][3].doc["solution"]
    texts = {("pocket_math500", number): text for number, text in enumerate([*TOWERS, right])}
    monkeypatch.setattr(timed, "ANSWER_SECONDS", 2.0)
    scores = [score for score in suite.score(texts) if score.metric == "math_verify"]
    assert {score.doc_id: score.value for score in scores} == {0: 0, 1: 0, 2: 0, 3: 1, None: 0.25}
    assert "scoring document 1 took longer than 2 s; it counts as wrong" in " ".join(capsys.readouterr().err.split())
