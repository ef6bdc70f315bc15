"""Work in parts: who gets which, what becomes of a lost one, and that audits and files are those of one process."""

import json
import os
import signal
import threading
import time
from contextlib import nullcontext, suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path

import pyarrow as pa
import pytest
from echoing import echo
from playing import Player
from playing import fakes as fakes
from screens import output, refusal

from specbench.config import UserError
from specbench.measure import crew, parts, queue
from specbench.measure.crew import NOWHERE, Crew
from specbench.measure.parts import Begun, Done, Opened, PartQueue, Stepped, carry_out, do_parts
from specbench.measure.worker import Refused, version
from specbench.training.collected import Share, collect_all, sharing
from specbench.training.documents import Document
from specbench.training.publish import collecting


@pytest.fixture
def driver(fakes):
    return PartQueue(Crew([fake.worker for fake in fakes], wait))


def tell(driver, fake, what):
    """What it took the progress bar further by."""
    steps = []
    fake.line.send(what)
    driver.hear(steps.append)
    return sum(steps)


def begun(parts):
    return Begun({"name": "tiny"}, parts, 10, version())


def test_parts_are_given_to_whoever_is_free(driver, fakes):
    one, two = fakes
    tell(driver, one, begun(3))
    assert driver.begun.facts == {"name": "tiny"} and one.received() == 0 and two.received() == "nothing"
    tell(driver, two, begun(3))
    assert two.received() == 1
    assert tell(driver, two, Stepped(4)) == 4
    tell(driver, two, Done("b"))
    assert two.received() == 2 and driver.results == {1: "b"}
    tell(driver, two, Done("c"))
    tell(driver, one, Done("a"))
    assert driver.results == {0: "a", 1: "b", 2: "c"} and one.received() == two.received() == "nothing"


class Shelf:
    """Keeps results in a dictionary; each part has five steps."""

    def __init__(self, results):
        self.results = results

    def read(self, number, advance):
        if number in self.results:
            advance(5)
        return self.results.get(number)

    def keep(self, number, result):
        self.results[number] = result


def test_parts_that_are_kept_are_not_done_again(fakes):
    shelf, facts = {1: "b"}, []
    driver = PartQueue(Crew([fake.worker for fake in fakes], wait), lambda its: facts.append(its) or Shelf(shelf))
    one, two = fakes
    assert tell(driver, one, begun(3)) == 5 and facts == [{"name": "tiny"}]
    tell(driver, two, begun(3))
    assert (one.received(), two.received()) == (0, 2)
    tell(driver, two, Done("c"))
    assert shelf == {1: "b", 2: "c"} == driver.results and two.received() == "nothing"


def test_this_process_does_what_is_not_kept():
    shelf, done = {0: "a", 2: "c"}, []
    opened = Opened("facts", 3, 15, lambda number, advance: done.append(number) or "b")
    facts, results = carry_out(lambda: opened, "doing", "cpu", None, lambda its: Shelf(shelf))
    assert (facts, results, done) == ("facts", ["a", "b", "c"], [1]) and shelf == {0: "a", 1: "b", 2: "c"}


def test_the_part_of_a_lost_worker_is_done_by_another_one(driver, fakes, capsys):
    one, two = fakes
    for fake in fakes:
        tell(driver, fake, begun(2))
    one.line.close()
    driver.hear(lambda count: None)
    said = capsys.readouterr().out
    assert "worker 1 is lost (exit code -9); another one continues part 1 of 2" in " ".join(said.split())
    two.received()
    tell(driver, two, Done("b"))
    assert two.received() == 0
    two.line.close()
    with pytest.raises(UserError, match=r"^no worker is left: worker 2 is lost \(exit code -9\)$"):
        driver.hear(lambda count: None)


def test_a_part_that_kills_its_workers_is_given_up():
    fakes = [Player(number) for number in (1, 2, 3, 4)]
    driver = PartQueue(Crew([fake.worker for fake in fakes], wait))
    for fake in fakes:
        tell(driver, fake, begun(1))
    for fake in fakes[:2]:
        fake.line.close()
        driver.hear(lambda count: None)
    fakes[2].line.close()
    with pytest.raises(UserError, match=r"^part 1 of 1 was lost 3 times: worker 3 is lost"):
        driver.hear(lambda count: None)


def test_another_version_and_what_cannot_be_done_are_one_line(driver, fakes):
    with pytest.raises(UserError, match=r"^worker 2 has specbench 0\.0\.1, and this is [^\n]*$"):
        tell(driver, fakes[1], Begun(None, 1, 1, "0.0.1"))
    with pytest.raises(UserError, match=r"^no such model$"):
        tell(driver, fakes[0], Refused("no such model"))


def test_models_that_no_worker_loads_are_not_waited_for_for_ever(driver, fakes, monkeypatch):
    monkeypatch.setattr(queue, "LOADING", 60)
    driver.hear(lambda count: None)
    driver._began -= 61
    with pytest.raises(
        UserError, match=r"^no worker has loaded the models within 1 minutes; try it without --workers$"
    ):
        driver.hear(lambda count: None)
    fakes[0].worker.log = Path("run/shards/worker-1.txt")
    with pytest.raises(UserError, match=r"within 1 minutes; see run/shards$"):
        driver.hear(lambda count: None)
    fakes[0].worker.log = NOWHERE
    driver._began += 61
    tell(driver, fakes[0], begun(1))
    driver._began -= 61
    driver.hear(lambda count: None)


def test_a_worker_that_cannot_be_started_leaves_no_other(monkeypatch):
    """As where the system allows no more processes."""
    made = []

    class Process:
        terminated = False

        def terminate(self):
            self.terminated = True

        def join(self, seconds): ...

        def is_alive(self):
            return False

    def start(*given):
        if made:
            raise BlockingIOError("Resource temporarily unavailable")
        made.append(Process())
        return made[0], Pipe()[0]

    monkeypatch.setattr(crew, "start", start)
    with pytest.raises(BlockingIOError), crew.started(echo, NOWHERE, [{}, {}]):
        raise AssertionError("it goes on with one")
    assert made[0].terminated


def letters(count, wrong=None, short=None):
    def letter(number, advance):
        assert number != wrong, "wrong part"
        if number == short:
            raise EOFError("a file ends too early")
        advance(2)
        return "abcdefgh"[number]

    return Opened("facts", count, 2 * count, letter)


def test_results_are_in_the_order_of_the_parts(fakes, monkeypatch):
    """The second worker has finished its part before the first one has."""
    one, two = fakes
    crew_of_both = nullcontext(Crew([fake.worker for fake in fakes], wait))
    monkeypatch.setattr(parts, "starter", lambda staffing, device: lambda work, folder: crew_of_both)
    for fake, messages in ((one, [Stepped(1), Done("a")]), (two, [Done("b")])):
        for message in (begun(2), *messages):
            fake.line.send(message)
    assert carry_out(lambda: letters(2), "letters", "cpu", object()) == ({"name": "tiny"}, ["a", "b"])


def test_without_workers_this_process_does_all():
    assert carry_out(lambda: letters(3), "letters", "cpu", None) == ("facts", ["a", "b", "c"])
    assert carry_out(lambda: letters(0), "letters", "cpu", None) == ("facts", [])


def test_a_worker_does_what_it_is_sent_until_the_driver_hangs_up():
    driver, line = Pipe()
    worker = threading.Thread(target=lambda: suppressed(do_parts, lambda: letters(8, wrong=5), line, 3))
    worker.start()
    assert driver.recv() == Begun("facts", 8, 16, version())
    driver.send(6)
    assert (driver.recv(), driver.recv()) == (Stepped(2), Done("g"))
    driver.send(5)
    assert driver.recv().line.startswith("worker 3: AssertionError: wrong part")
    driver.close()
    worker.join()


@pytest.mark.parametrize("what", [{"wrong": 5}, {"short": 5}])
def test_what_a_part_raises_is_told_in_one_line(what):
    """An EOFError is not taken for a driver that is gone, and asserts here have several lines."""
    driver, line = Pipe()
    worker = threading.Thread(target=lambda: suppressed(do_parts, lambda: letters(8, **what), line, 3))
    worker.start()
    assert driver.recv().parts == 8
    driver.send(5)
    worker.join()
    line.close()
    refused = driver.recv()
    assert isinstance(refused, Refused) and "\n" not in refused.line and refused.line.startswith("worker 3: ")
    assert refused.line.endswith("; without --workers it tells where")


def suppressed(called, *given):
    with suppress(EOFError, OSError):
        called(*given)


# Collections of trainings


def document(number):
    return Document("task", number, [1], "hash", (), 4, lambda answer: 0.0)


def collect(folder, count, made):
    """All of a collection, or a share of it: a file for each document, which holds its number."""

    def table(one):
        made.append(one.number)
        return pa.table({"number": [one.number]})

    with collecting(folder, "collecting", count, "it") as advance:
        documents = [document(number) for number in range(count)]
        return collect_all(documents, folder, lambda one: {}, table, lambda t: t["number"].to_pylist(), advance)


def test_shares_together_are_the_collection_and_then_nothing_is_made(tmp_path):
    shares = []
    for number in (2, 0, 1):
        made = []
        with sharing(Share(number, 3)):
            collect(tmp_path, 8, made)
            raise AssertionError("it goes on to train")
        shares += made
    assert shares == [2, 5, 0, 3, 6, 1, 4, 7]
    made = []
    assert list(collect(tmp_path, 8, made).values()) == [[number] for number in range(8)] and not made


# The commands


@pytest.fixture
def words(place):
    return ["--pair", f"target={place / 'target'},draft={place / 'draft'}", "--suite", place / "few.yaml"]


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def two_workers(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return ["--device", "cpu", "--workers", "2"]


@pytest.mark.long
def test_a_calibration_with_workers_writes_the_files_of_one_process(words, two_workers, tmp_path):
    calibrate = ["calibrate", *words, "--documents", "3"]
    output(*calibrate, "--device", "cpu", "--out", tmp_path / "whole")
    output(*calibrate, *two_workers, "--out", tmp_path / "shared")
    whole = files_of(tmp_path / "whole")
    assert len(whole) == 3 and files_of(tmp_path / "shared") == whole


@pytest.mark.long
def test_an_audit_with_workers_finds_what_one_process_finds(words, two_workers, tmp_path):
    audit = ["audit", *words, "--documents", "1", "--length", "16", "--draws", "3"]
    audit += [word for name in ("sps", "csd", "lookahead", "pld") for word in ("--method", name)]
    shown = output(*audit, "--device", "cpu", "--out", tmp_path / "whole.json")
    assert output(*audit, *two_workers, "--out", tmp_path / "shared.json").endswith(shown[shown.index("method") :])
    whole, shared = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "shared"))
    assert len(whole["methods"]) == 4
    assert shared["methods"] == whole["methods"] and shared["models"] == whole["models"]


@pytest.mark.long
def test_a_training_whose_worker_is_killed_writes_the_head_of_one_process(words, two_workers, tmp_path):
    train = ["train", "--method", "vocabtrim", *words, "--documents", "6"]
    output(*train, "--device", "cpu", "--out", tmp_path / "whole.safetensors")
    folder, killed = tmp_path / "shared.collected", []

    def kill() -> None:
        """A child of this process that works, once there is a file."""
        while not list(folder.glob("*.parquet")):
            time.sleep(0.005)
        for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
                killed.append(child)
                return

    threading.Thread(target=kill, daemon=True).start()
    said = " ".join(output(*train, *two_workers, "--out", tmp_path / "shared.safetensors").split())
    assert killed and "is lost (exit code -9)" in said
    assert files_of(folder) == files_of(tmp_path / "whole.collected")
    assert (tmp_path / "shared.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


def test_what_workers_cannot_share_is_refused(words, tmp_path):
    train = ["train", *words, "--workers", "2", "--out", tmp_path / "head.safetensors"]
    assert "cospec rl collects nothing that workers could share" in refusal(
        *train, "--method", "cospec", "--stage", "rl"
    )
    audit = ["audit", "--server", "http://127.0.0.1:1", "--workers", "2"]
    assert "leave out --workers" in refusal(*audit)
    assert "--ray needs --workers" in refusal("calibrate", *words, "--ray", "local")
