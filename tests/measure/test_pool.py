"""A pool of workers: who gets which shard, what becomes of a lost one, and that the run is that of one process."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from playing import Player
from screens import output, refusal
from tiny_runs import SAME, always, samples_of

from specbench.config import UserError
from specbench.measure import loop, pool
from specbench.measure.crew import Crew
from specbench.measure.pool import ShardPool
from specbench.measure.staffing import Staffing
from specbench.measure.worker import Advanced, Ended, Given, Ready, Refused, version
from specbench.plan import Plan
from specbench.results.shard import Shard
from specbench.results.stored import StoredRun


class Fake(Player):
    def __init__(self, number):
        super().__init__(number, Path(f"worker-{number}.txt"))

    def received(self):
        facts = super().received()
        return facts.shard if isinstance(facts, Given) else facts


@pytest.fixture
def fakes():
    return [Fake(1), Fake(2)]


@pytest.fixture
def driver(fakes, tmp_path):
    return ShardPool(tmp_path, Crew([fake.worker for fake in fakes], wait), None)


def tell(driver, fake, what):
    fake.line.send(what)
    return listen(driver)


def listen(driver):
    return [driver.hear(worker) for worker in driver.heard(1)]


def test_shards_are_given_to_whoever_is_free(driver, fakes):
    one, two = fakes
    tell(driver, one, Ready(places=100, documents=40))
    assert driver.count == 8, "four for each worker"
    assert one.received() == Shard(1, 8) and two.received() == "nothing" and driver.busy
    tell(driver, two, Ready(100, 40))
    assert two.received() == Shard(2, 8) and one.received() == "nothing"
    (shown,) = tell(driver, one, Advanced(7, "task"))
    assert shown.done == driver.done == 7 and driver.documents == 40
    for wanted in range(3, 9):
        tell(driver, one, Ended(True))
        assert one.received() == Shard(wanted, 8)
    tell(driver, one, Ended(True))
    assert one.received() == "nothing" and not driver.finished
    tell(driver, two, Ended(True))
    assert driver.finished and not driver.busy


def test_there_are_no_more_shards_than_places(driver, fakes):
    tell(driver, fakes[0], Ready(places=3, documents=3))
    assert driver.count == 3


def test_a_run_that_was_cut_stays_so(fakes, tmp_path):
    """Seven shards have begun; now there are two workers, who would cut it into eight."""
    driver = ShardPool(tmp_path, Crew([fake.worker for fake in fakes], wait), 7)
    tell(driver, fakes[0], Ready(places=100, documents=40))
    assert driver.count == 7 and fakes[0].received() == Shard(1, 7)


def test_a_lost_shard_goes_to_another_worker(driver, fakes, capsys):
    one, two = fakes
    for fake in fakes:
        tell(driver, fake, Ready(2, 8))
    assert (one.received(), two.received()) == (Shard(1, 2), Shard(2, 2))
    one.line.close()
    listen(driver)
    assert driver.workers == [two.worker]
    assert "worker 1 is lost (exit code -9" in capsys.readouterr().out
    tell(driver, two, Ended(True))
    assert two.received() == Shard(1, 2), "the one that was lost"
    two.line.close()
    with pytest.raises(UserError, match=r"no worker is left: worker 2 is lost .*--resume .* continues the run"):
        listen(driver)


def test_a_shard_that_kills_its_workers_is_given_up(tmp_path):
    fakes = [Fake(number) for number in (1, 2, 3, 4)]
    driver = ShardPool(tmp_path, Crew([fake.worker for fake in fakes], wait), None)
    driver.each = 1
    for fake in fakes:
        tell(driver, fake, Ready(1, 8))
    for fake in fakes[:2]:
        assert fake.received() == Shard(1, 1)
        fake.line.close()
        listen(driver)
    fakes[2].line.close()
    with pytest.raises(UserError, match="shard 1 of 1 was lost 3 times"):
        listen(driver)


def test_a_worker_that_dies_idle_loses_nothing(driver, fakes):
    tell(driver, fakes[0], Ready(2, 8))
    fakes[1].line.close()
    listen(driver)
    assert fakes[0].received() == Shard(1, 2) and driver.busy


def test_what_no_worker_can_do_ends_the_run_in_its_words(driver, fakes):
    with pytest.raises(UserError, match=r"^no such model$"):
        tell(driver, fakes[0], Refused("no such model"))


def test_a_worker_with_another_version_ends_the_run(driver, fakes):
    tell(driver, fakes[0], Ready(9, 9, version=version()))
    with pytest.raises(
        UserError, match=r"^worker 2 has specbench 0\.0\.1, and this is .*: install one version [^\n]*$"
    ):
        tell(driver, fakes[1], Ready(9, 9, version="0.0.1"))


@pytest.mark.parametrize("timed", [True, False])
def test_two_workers_that_tell_one_device_are_not_timed(timed, fakes, tmp_path):
    """As two actors on one node of a Ray cluster without GPUs."""
    driver = ShardPool(tmp_path, Crew([fake.worker for fake in fakes], wait), None, timed)
    tell(driver, fakes[0], Ready(9, 9, "8 cores of a CPU on here"))
    if not timed:
        tell(driver, fakes[1], Ready(9, 9, "8 cores of a CPU on here"))
        assert fakes[1].received() == Shard(2, 8)
        return
    with pytest.raises(UserError, match=r"^workers 1 and 2 share 8 cores of a CPU on here, [^\n]*--untimed [^\n]*$"):
        tell(driver, fakes[1], Ready(9, 9, "8 cores of a CPU on here"))


def test_without_a_worker_that_began_there_is_nothing_to_continue(tmp_path):
    fake = Fake(1)
    driver = ShardPool(tmp_path, Crew([fake.worker], wait), None)
    fake.line.close()
    with pytest.raises(UserError, match=r"^no worker is left: worker 1 is lost \(exit code -9; see [^\n]*\)$"):
        listen(driver)


def test_workers_are_asked_to_stop_once_and_waited_for(driver, fakes):
    one, two = fakes
    for fake in fakes:
        tell(driver, fake, Ready(9, 9))
        fake.received()
    assert not driver.stopped() and not driver.stopped()
    assert one.received() is None and one.received() == "nothing"
    tell(driver, one, Ended(False))
    assert one.received() == "nothing", "no further shard"
    assert not driver.stopped()
    tell(driver, two, Ended(True))
    assert driver.stopped() and not driver.finished


# Devices


def gpus(monkeypatch, count):
    results = [SimpleNamespace(index=str(number)) for number in range(count)]
    monkeypatch.setattr("specbench.measure.gpus.read_gpus", lambda device: results)


def plan_on(device, untimed=False):
    return Plan.model_construct(device=device, untimed=untimed)


@pytest.mark.parametrize(
    ("device", "count", "workers", "each"),
    [("auto", 0, 2, 1), ("cpu", 4, 2, 1), ("auto", 2, 3, 1), ("spread", 4, 3, 2), ("spread", 5, 3, 2)],
)
def test_workers_that_share_a_device_are_not_timed(device, count, workers, each, monkeypatch):
    gpus(monkeypatch, count)
    staffing = Staffing(workers, gpus=each)
    with pytest.raises(UserError, match=r"^--workers [^\n]*--untimed[^\n]*$"):
        staffing.environments(device)
    assert len(staffing.environments(device, timed=False)) == workers


def test_each_worker_has_a_gpu_or_its_share_of_the_cores(monkeypatch):
    gpus(monkeypatch, 2)
    assert Staffing(2).environments("auto") == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert Staffing(3).environments("cpu", timed=False) == [{"OMP_NUM_THREADS": "2"}] * 3
    with pytest.raises(UserError, match="leave out --device cuda:1"):
        Staffing(2).fitted(plan_on("cuda:1", untimed=True))


def test_a_worker_has_several_gpus_over_which_its_target_is_spread(monkeypatch):
    """No GPU is in two groups; one that is left over stays idle."""
    gpus(monkeypatch, 5)
    two = Staffing(2, gpus=2)
    assert two.fitted(plan_on("auto")).device == "spread" and two.fitted(plan_on("spread")).device == "spread"
    assert [e["CUDA_VISIBLE_DEVICES"] for e in two.environments("spread")] == ["0,1", "2,3"]
    shared = Staffing(3, gpus=2).environments("spread", timed=False)
    assert [e["CUDA_VISIBLE_DEVICES"] for e in shared] == ["0,1", "2,3", "0,1"]
    assert two.words == "--workers 2 --gpus-per-worker 2" and Staffing(1).fitted(plan_on("auto")).device == "auto"
    with pytest.raises(UserError, match=r"^--gpus-per-worker 6: this machine has 5 GPUs; give a worker fewer$"):
        Staffing(1, gpus=6).environments("spread")
    with pytest.raises(UserError, match="leave it out, or --device cpu"):
        two.fitted(plan_on("cpu"))
    with pytest.raises(UserError, match="--device spread needs --gpus-per-worker"):
        Staffing(2).fitted(plan_on("spread"))


# Without times


def test_a_run_without_times_has_the_texts_and_no_seconds(make_plan, tmp_path):
    for name, untimed in (("timed", False), ("untimed", True)):
        assert loop.execute(make_plan(["sps"], untimed=untimed), tmp_path / name, always)
    timed, untimed = samples_of(tmp_path / "timed"), samples_of(tmp_path / "untimed")
    assert timed[SAME].astype(str).equals(untimed[SAME].astype(str))
    for name in ("samples", "rounds"):
        table = pq.read_table(tmp_path / "untimed" / f"{name}.parquet")
        assert all(table[c].null_count == len(table) for c in table.column_names if c.endswith("seconds"))
    shown = output("show", tmp_path / "untimed")
    assert "its speed is not known" in " ".join(shown.split())


# The command


@pytest.fixture
def words(place):
    run = ["run", "--pair", f"target={place / 'target'},draft={place / 'draft'}", "--suite", place / "few.yaml"]
    return [*run, "--method", "sps", "--method", "csd", "--repeats", "2", "--device", "cpu", "--untimed"]


def test_what_workers_cannot_do_is_refused(words, tmp_path):
    timed = [word for word in words if word != "--untimed"]
    assert "distort each other's times" in refusal(*timed, "--workers", "2", "--out", tmp_path / "run")
    several = ["--gpus-per-worker", "2", "--out", tmp_path / "run"]
    assert "--gpus-per-worker needs --workers" in refusal(*words, *several)
    assert "--gpus-per-worker is for GPUs" in refusal(*words, "--workers", "2", *several)
    assert "leave out --shard" in refusal(*words, "--workers", "2", "--shard", "1/2", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert "holds no shards that workers began" in refusal("run", "--resume", tmp_path, "--workers", "2")


def test_processes_of_torchrun_do_not_make_one_run_each(words, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for workers in ([], ["--workers", "2"]):
        said = " ".join(refusal(*words, *workers, "--out", tmp_path / "run").split())
        assert "torchrun has started 2 processes of one run" in said and "no tensor parallelism" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("left", ["shards/worker-1.txt", "shards/1/.lock", "shards/2/manifest.json.0123abcd.new"])
def test_a_pool_that_was_stopped_while_it_loaded_begins_again(words, tmp_path, monkeypatch, left):
    folder = tmp_path / "run"

    def stopped(*_):
        (folder / left).parent.mkdir(parents=True, exist_ok=True)
        (folder / left).touch()
        return False

    monkeypatch.setattr(pool, "_decode", stopped)
    assert "stopped before the first document; nothing was written" in output(
        *words, "--workers", "2", "--out", folder, code=130
    )
    assert not folder.exists()
    stopped()  # a driver that was killed clears nothing
    assert f"with --out {folder}" in " ".join(refusal("run", "--resume", folder, "--workers", "2").split())
    assert "stopped before" in output(*words, "--workers", "2", "--out", folder, code=130)
    stopped()
    (folder / "notes.txt").touch()
    assert "exists; choose another --out" in refusal(*words, "--workers", "2", "--out", folder)


def test_shards_of_another_plan_are_not_continued(words, tmp_path):
    """Neither by workers nor by `join`, which would take those that are decoded for this plan's."""
    folder = tmp_path / "run"
    output(*words, "--shard", "1/2", "--out", folder)
    before = sorted(folder.rglob("*"))
    for where in (["--out", folder], ["--resume", folder]):
        said = refusal(*words, "--seed", "9", "--workers", "2", *where)
        assert "began with different settings (seed: 0 there, 9 here)" in " ".join(said.split())
    assert sorted(folder.rglob("*")) == before


@pytest.mark.long
def test_workers_that_cannot_load_the_models_end_the_run_in_one_line(words, place, tmp_path):
    """The driver reads no weights, so it hears it from a worker."""
    shutil.copytree(place / "target", tmp_path / "target")
    (tmp_path / "target" / "model.safetensors").write_bytes(b"no weights")
    words[words.index("--pair") + 1] = f"target={tmp_path / 'target'},draft={place / 'draft'}"
    said = refusal(*words, "--workers", "2", "--out", tmp_path / "run")
    assert said.count("error: ") == 1 and "Traceback" not in said
    assert f"cannot load {tmp_path / 'target'}" in " ".join(said.split())


@pytest.mark.long
def test_a_pool_whose_worker_is_killed_makes_the_run_of_one_process(words, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    output(*words, "--out", tmp_path / "whole")
    folder, killed = tmp_path / "run", []

    def kill() -> None:
        """The process that has a shard's lock, once it has a document."""
        while not killed:
            for part in folder.glob("shards/*/parts/*.samples.parquet"):
                lock = part.parents[1] / ".lock"
                if lock.exists():
                    os.kill(json.loads(lock.read_text())["pid"], signal.SIGKILL)
                    killed.append(part)
                    return
            time.sleep(0.01)

    threading.Thread(target=kill, daemon=True).start()
    said = " ".join(output(*words, "--workers", "2", "--out", folder).split())
    assert killed and "is lost (exit code -9" in said and "another one continues shard" in said
    assert samples_of(tmp_path / "whole")[SAME].astype(str).equals(samples_of(folder)[SAME].astype(str))
    assert StoredRun(folder).finished


@pytest.mark.long
def test_a_sweep_with_workers_is_that_of_one_process(words, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    sweep = ["sweep", *words[1 : words.index("--method")], "--method", "csd", "--param", "gamma=2,3"]
    sweep += ["--repeats", "2", "--device", "cpu", "--untimed"]
    output(*sweep, "--out", tmp_path / "whole")
    output(*sweep, "--workers", "2", "--out", tmp_path / "pool")
    whole, pooled = samples_of(tmp_path / "whole"), samples_of(tmp_path / "pool")
    assert whole.method.nunique() == 3 and set(pooled.worker) == {1, 2}, "it tests nothing"
    assert whole[SAME].astype(str).equals(pooled[SAME].astype(str))


@pytest.mark.long
def test_a_driver_that_is_killed_leaves_a_run_that_goes_on(words, tmp_path, monkeypatch):
    """Its workers end by themselves with their documents; rows lost 0, duplicates 0."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    output(*words, "--out", tmp_path / "whole")
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "specbench.cli", *words, "--workers", "2", "--out", folder]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL) as driver:
        while not list(folder.glob("shards/*/parts/*.samples.parquet")) and driver.poll() is None:
            time.sleep(0.01)
        workers = [int(child) for child in Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()]
        driver.kill()
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        time.sleep(0.05)
    assert not (folder / "manifest.json").exists(), "it had ended before: this tests nothing"
    output("run", "--resume", folder, "--workers", "2")
    assert samples_of(tmp_path / "whole")[SAME].astype(str).equals(samples_of(folder)[SAME].astype(str))
