"""Workers of a Ray cluster: a node is lost, no worker is left, and what is refused; skipped without Ray."""

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from echoing import echo
from screens import output, refusal
from tiny_runs import SAME, samples_of

from specbench.config import UserError
from specbench.measure import ray_workers
from specbench.measure.attempts import begun, new_attempt
from specbench.measure.ray_workers import check_room, only_on_loopback
from specbench.results import records
from specbench.results.recorder import Recorder
from specbench.results.shard import attempts
from specbench.results.stored import StoredRun

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read when Ray is imported: all clusters here are on loopback


@pytest.fixture
def words(place):
    run = ["run", "--pair", f"target={place / 'target'},draft={place / 'draft'}", "--suite", place / "few.yaml"]
    return [*run, "--method", "sps", "--repeats", "4", "--device", "cpu", "--untimed"]


@pytest.fixture
def cluster(monkeypatch, request):
    """A cluster on this machine, whose head lends so many CPUs."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    head = {"num_cpus": getattr(request, "param", 0), "node_ip_address": "127.0.0.1", "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args=head)
    yield started
    started.shutdown()


def lose(cluster, nodes, when):
    """Remove nodes as soon as something holds, in a thread of its own."""

    def watch():
        while not when():
            time.sleep(0.02)
        for node in nodes:
            cluster.remove_node(node, allow_graceful=False)

    threading.Thread(target=watch, daemon=True).start()


def test_without_ray_it_is_one_line(words, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    said = refusal(*words, "--workers", "2", "--ray", "local", "--out", tmp_path / "run")
    assert "pip install 'specbench-harness[ray]'" in said and not (tmp_path / "run").exists()
    assert "--ray needs --workers" in refusal(*words, "--ray", "local", "--out", tmp_path / "run")


class Errors(SimpleNamespace):
    """Ray's exceptions."""

    class RayError(Exception):
        pass

    class RayTaskError(RayError):
        def __init__(self, cause):
            super().__init__(str(cause))
            self.cause = cause


class Called:
    """A method of an actor that runs in this process; a call is a future."""

    def __init__(self, pool, method):
        self.pool, self.method = pool, method

    def remote(self, *given):
        return self.pool.submit(self.method, *given)


class MadeUp:
    """As much of Ray as the driver asks for, with actors in threads."""

    exceptions = Errors

    def __init__(self):
        self.pool, self.killed, self.asked = ThreadPoolExecutor(8), [], {}

    def init(self, address, **given):
        self.address = address

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"CPU": 90.0}}]

    def remote(self, kind):
        def options(**asked):
            self.asked = asked
            return SimpleNamespace(remote=lambda *given: self.actor(kind(*given)))

        return SimpleNamespace(options=options)

    def actor(self, made):
        called = {name: Called(self.pool, getattr(made, name)) for name in ("hear", "send")}
        return SimpleNamespace(made=made, **called)

    def get(self, future):
        try:
            return future.result()
        except EOFError as error:
            raise Errors.RayTaskError(error) from None

    def wait(self, futures, num_returns, timeout):
        done, left = wait(futures, timeout, FIRST_COMPLETED)
        return list(done), list(left)

    def kill(self, relay):
        relay.made.process.kill()
        self.killed.append(relay)

    def shutdown(self):
        self.pool.shutdown()


def test_what_relays_hear_and_send_reaches_the_driver(monkeypatch, tmp_path):
    """With an actor in a thread in place of Ray's; its worker is a real process, and is killed in the end."""
    made_up = MadeUp()
    monkeypatch.setattr(ray_workers, "imported", lambda address: made_up)
    with ray_workers.started(echo, tmp_path, count=2, each=1, address="local", device="cpu") as crew:
        assert made_up.asked["max_restarts"] == 0 and made_up.asked["num_gpus"] == 0
        one, two = crew.workers
        assert (one.line.recv(), two.line.recv()) == (1, 2)
        assert one.log == tmp_path / "worker-1.txt" and one.log.exists()
        two.line.send({"part": 3})
        ready = []
        while not ready:
            ready = crew.wait([one.line, two.line], 1.0)
        assert ready == [two.line] and two.line.recv() == {"part": 3}
        one.line.relay.made.process.kill()
        with pytest.raises(EOFError):
            one.line.recv()
        assert one.end() == "exit code -9"
    assert len(made_up.killed) == 2


GPUS = {"CPU": 8.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("nodes", "count", "each", "device", "gpus"),
    [
        ([{"CPU": 2.0}], 2, 1, "auto", 0),
        ([GPUS, GPUS], 4, 1, "auto", 1),
        ([GPUS, GPUS], 2, 2, "spread", 2),
        ([GPUS, GPUS], 9, 1, "cpu", 0),
        ([GPUS, GPUS], 5, 1, "auto", "the Ray cluster has 4 GPUs; take fewer"),
        ([{"CPU": 1.0}], 2, 1, "auto", "the Ray cluster has 1 CPU; take fewer"),
        ([{"CPU": 8.0}], 1, 2, "spread", "the Ray cluster has 0 GPUs; take fewer"),
        ([{"CPU": 8.0, "GPU": 3.0}] * 2, 3, 2, "spread", "have room for 2, of a CPU and 2 GPUs on one node each"),
        ([{"CPU": 8.0}, {"CPU": 1.0, "GPU": 4.0}], 2, 1, "auto", "have room for 1, of a CPU and 1 GPU on one node"),
    ],
)
def test_workers_find_room_on_the_nodes_or_it_is_one_line(nodes, count, each, device, gpus):
    """An actor for which no node has room would wait forever."""
    if isinstance(gpus, int):
        assert check_room(nodes, count, each, device) == gpus
        return
    with pytest.raises(UserError, match=f"^--workers {count}: [^\n]*{gpus}"):
        check_room(nodes, count, each, device)


LISTENING = "0A"  # the state of a socket in /proc/net/tcp
LOOPBACKS = ("0100007F", "0" * 31 + "1", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


def descendants(pid):
    path = Path(f"/proc/{pid}/task/{pid}/children")
    with suppress(FileNotFoundError):
        for child in map(int, path.read_text().split()):
            yield child
            yield from descendants(child)


def open_to_others(pids):
    """The addresses, as the kernel writes them, at which processes listen for more than this machine."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                inodes.add(os.readlink(link))
    results = []
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = row.split()[:10]
            if state == LISTENING and f"socket:[{inode}]" in inodes:
                results.append(local.split(":")[0])
    return results


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_cluster_that_is_started_here_listens_on_loopback_only(words, cluster, tmp_path):
    """Next to another one on this machine, without a CPU, which Ray would join if it were not told otherwise."""
    command = [sys.executable, "-m", "specbench.cli", *words, "--workers", "1", "--ray", "local", "--out", "run"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    addresses = []
    with subprocess.Popen(list(map(str, command)), cwd=tmp_path, env=environment) as run:
        while run.poll() is None:
            addresses += open_to_others([run.pid, *descendants(run.pid)])
            time.sleep(0.2)
    assert run.returncode == 0
    assert addresses, "nothing listened: this tests nothing"
    assert set(addresses) <= set(LOOPBACKS)


def recorded(folder, count):
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    for index in range(count):
        row = {"repeat": 0, "task": "one", "doc_id": index, "method": "sps", "warmup": False}
        Recorder(folder, origin={"worker": 1}).write(index, [row], [row | {"round": 0}], {"sps": None})


def test_a_further_attempt_begins_with_what_was_recorded(tmp_path):
    """What a cut-off worker still writes is in its own folder alone."""
    first = new_attempt(tmp_path, 7)
    assert first == tmp_path / "shards" / "7" and begun(tmp_path, 7) is None
    recorded(first, 3)
    (first / "parts" / "000003.rounds.parquet.0123abcd.new").write_text("half of it")
    second = new_attempt(tmp_path, 7)
    assert second.name == "7.2" and attempts(tmp_path) == {7: [1, 2]}
    left = Recorder(first, origin={"worker": 1})
    left.write(3, [], [], {})
    went_on = Recorder(second, origin={"worker": 2})
    assert went_on.done() == 3 and not list(second.glob("parts/*.new"))
    went_on.write(3, [{"repeat": 0, "task": "one", "doc_id": 3, "method": "sps", "warmup": False}], [], {"sps": None})
    assert records.read_rows(second, "samples", ["attempt"]).to_pylist()[-1] == {"attempt": 4}
    assert begun(tmp_path, 7).folder == second
    left.finish()
    assert begun(tmp_path, 7).folder == first, "what is decoded whole comes before what is not"
    assert new_attempt(tmp_path, 7).name == "7.3"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_the_shard_of_a_lost_node_is_continued_on_another(words, cluster, tmp_path):
    """Rows lost 0, duplicates 0; the attempt has a folder of its own, and its rows say so."""
    node, folder = cluster.add_node(num_cpus=1), tmp_path / "run"
    lose(cluster, [node], lambda: len(list(folder.glob("shards/*/parts/*.samples.parquet"))) >= 2)
    said = " ".join(output(*words, "--workers", "2", "--ray", cluster.address, "--out", folder).split())
    output(*words, "--out", tmp_path / "whole")
    assert "is lost (" in said and "another one continues shard" in said
    assert samples_of(tmp_path / "whole")[SAME].astype(str).equals(samples_of(folder)[SAME].astype(str))
    assert len(list((folder / "shards").glob("*.2"))) == 1
    assert StoredRun(folder).finished


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_worker_left_is_one_line_and_the_run_goes_on_without_ray(words, cluster, tmp_path):
    """The head has no CPU to lend, so the only worker is on the node that is lost."""
    node, folder = cluster.add_node(num_cpus=1), tmp_path / "run"
    assert "the Ray cluster has 1 CPU;" in refusal(*words, "--workers", "2", "--ray", cluster.address, "--out", folder)
    lose(cluster, [node], lambda: list(folder.glob("shards/*/parts/*.samples.parquet")))
    said = refusal(*words, "--workers", "1", "--ray", cluster.address, "--out", folder)
    assert "no worker is left: worker 1 is lost" in said and "Traceback" not in said
    output("run", "--resume", folder, "--workers", "1")
    output(*words, "--out", tmp_path / "whole")
    assert samples_of(tmp_path / "whole")[SAME].astype(str).equals(samples_of(folder)[SAME].astype(str))


def test_a_cluster_that_is_not_there_is_one_line(words, tmp_path):
    pytest.importorskip("ray")
    assert "write HOST:PORT" in refusal(*words, "--workers", "2", "--ray", "somewhere", "--out", tmp_path / "run")
    said = refusal(*words, "--workers", "2", "--ray", "127.0.0.1:1", "--out", tmp_path / "run")
    assert "no cluster can be reached there" in said and "Traceback" not in said


def test_a_cluster_that_is_on_loopback_only_is_looked_for_there(monkeypatch):
    """Ray takes a machine's outer address instead, where such a cluster does not listen."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert only_on_loopback(f"127.0.0.1:{port}") and only_on_loopback(f"localhost:{port}")
        assert not only_on_loopback(f"10.0.0.5:{port}") and not only_on_loopback("local")
        monkeypatch.setattr(ray_workers, "OUTSIDE", ("127.0.0.1", 9))  # the outer address answers too
        assert not only_on_loopback(f"127.0.0.1:{port}")
