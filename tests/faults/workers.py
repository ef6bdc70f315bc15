"""Workers of one run, on this machine or on a Ray cluster: some are killed, their driver is, or a disk or node is lost.

Every command has a time limit, and the run in the end is held against that of one process.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from faults import place
from faults.bench import BLOCK, Bench, Fault, Outcome, expect, last_words
from faults.child import CONTEXT, Command
from faults.folders import NO_DISKS, mounted
from faults.injected import fill
from faults.space import full
from faults.stop import both

COUNT = 3  # workers, of which two may be lost
REPEATS = 3  # of two tasks that stay whole: six shards
DOCUMENTS = REPEATS * 2 * place.LIMIT
GONE = 60.0  # seconds in which workers must end after their driver
STARTS = 4  # of a cluster
ONE_AT_A_TIME = threading.Lock()  # two clusters would look for the same ports


@dataclass(frozen=True)
class Driven:
    """A run with workers under way; `words` say where these are. On Ray, `lose` removes the second node at once."""

    command: Command
    words: list[str]
    lose: Callable[[], None]


def faults(bench: Bench) -> list[Fault]:
    """On this machine."""
    kills = [partial(workers_killed, bench, number, False) for number in range(bench.count(5, 1))]
    drivers = [partial(driver_killed, bench, number, False) for number in range(bench.count(2, 1))]
    rooms = [partial(no_room, bench, number) for number in range(bench.count(2, 1))]
    return [
        Fault("two workers of a pool of three killed", kills),
        Fault("driver of a pool killed", drivers),
        Fault("disk full at a worker of a pool", rooms),
    ]


def ray_faults(bench: Bench) -> list[Fault]:
    """On a Ray cluster of this machine; twenty workers are killed."""
    kills = [partial(workers_killed, bench, number, True) for number in range(bench.count(10, 1))]
    drivers = [partial(driver_killed, bench, number, True) for number in range(bench.count(2, 1))]
    nodes = [partial(node_lost, bench, number) for number in range(bench.count(2, 1))]
    tries = (kills, drivers, nodes) if find_spec("ray") else ([without_ray],) * 3
    names = ("two workers of three on Ray killed", "driver of workers on Ray killed", "Ray node with two workers lost")
    return [Fault(*one) for one in zip(names, tries, strict=True)]


def without_ray(_: Path) -> Outcome:
    return Outcome(0, 0, 0, skipped="Ray is not installed")


# What goes wrong


def workers_killed(bench: Bench, number: int, ray: bool, work: Path) -> Outcome:
    """Two workers, one after the other, each at a random moment: the process that decodes, or Ray's actor over it."""
    rng, folder, killed = bench.rng("workers", number, ray), work / "run", []
    with driven(bench, number, ray, work) as run:
        for _ in range(2):
            moment(run.command, folder, rng)
            if living := workers(folder):
                victim, actor = rng.choice(living), ray and rng.random() < 0.5
                with suppress(OSError):
                    os.kill(parent(victim) if actor else victim, signal.SIGKILL)
                    killed.append("an actor" if actor else "a worker")
                run.command.until(lambda: run.command.said().count("is lost (") >= len(killed), GONE)
        what = f"try {number}, killed {' and '.join(killed) or 'nobody'}, T {temperature(number):g}"
        return judged(bench, number, run.command, folder, what, len(killed))


def driver_killed(bench: Bench, number: int, ray: bool, work: Path) -> Outcome:
    """At a random moment; its workers end by themselves, and --resume goes on."""
    rng, folder = bench.rng("driver", number, ray), work / "run"
    with driven(bench, number, ray, work) as run:
        moment(run.command, folder, rng)
        run.command.send(signal.SIGKILL)
        code, end = run.command.end(), time.monotonic() + GONE
        while workers(folder) and time.monotonic() < end:
            time.sleep(0.05)
        what = f"driver {number}, killed with {documents(folder)} documents"
        ends = {f"it was killed, not {code}": code == -signal.SIGKILL, "its workers have ended": not workers(folder)}
        return both(expect(ends, what), gone_on(bench, number, run.words, work, what))


def node_lost(bench: Bench, number: int, work: Path) -> Outcome:
    """The head has one CPU to lend and another node two; that one is lost at a random moment."""
    folder = work / "run"
    with driven(bench, number, True, work, lent=1) as run:
        moment(run.command, folder, bench.rng("node", number))
        what = f"node {number}, lost with {documents(folder)} documents"
        run.lose()
        return judged(bench, number, run.command, folder, what)


def no_room(bench: Bench, number: int, work: Path) -> Outcome:
    """The folder of a shard is a disk of its own, which becomes full; with room, --resume goes on."""
    if not bench.disks:
        return Outcome(0, 0, 0, skipped=NO_DISKS)
    rng, folder, mine = bench.rng("no room", number), work / "run", 1 + number % 2
    words = ["--workers", str(COUNT)]
    command = Command([*one_process(bench, number, folder), *words], work / "said", {"block": BLOCK})
    command.until((folder / "shards").exists)
    disk = mounted(folder / "shards" / str(mine), "4m")
    goal = rng.randrange(1, place.LIMIT)
    command.until(lambda: len(list(disk.glob("parts/*.samples.parquet"))) >= goal)
    fill(disk / "ballast", 0)
    code, said = command.end(), command.said()
    (disk / "ballast").unlink()
    what = f"shard {mine} full after {goal} documents"
    found = expect({f"one line that tells why, not {code}: {last_words(said)}": code == 2 and full(said)}, what)
    return both(found, gone_on(bench, number, words, work, what))


# The run


def temperature(number: int) -> float:
    return (0.0, 0.8)[number % 2]


def one_process(bench: Bench, number: int, out: Path) -> list[str]:
    """The words of the run by one process; without times, which workers that share a device may not have."""
    return bench.words(out, temperature(number), "--repeats", REPEATS, "--untimed")


WHOLE: dict[float, dict[str, list[tuple[Any, ...]]]] = {}
MADE = threading.Lock()


def whole(bench: Bench, number: int) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of the run by one process, which is made once."""
    at = temperature(number)
    with MADE:
        if at not in WHOLE:
            folder = bench.root / f"one-process-{at:g}"
            command = Command(one_process(bench, number, folder), bench.root / f"said-one-process-{at:g}")
            assert command.end() == 0, command.said()
            WHOLE[at] = place.facts(folder)
    return WHOLE[at]


@contextmanager
def driven(bench: Bench, number: int, ray: bool, work: Path, lent: int = COUNT) -> Iterator[Driven]:
    """A run with workers, on this machine or on a cluster, whose head lends some CPUs, and another node the others."""
    words = ["--workers", str(COUNT)]
    with ExitStack() as stack:
        lose: Callable[[], None] = lambda: None  # noqa: E731
        if ray:
            stack.enter_context(ONE_AT_A_TIME)
            address, lose = stack.enter_context(cluster(lent))
            words += ["--ray", address]
        command = Command([*one_process(bench, number, work / "run"), *words], work / "said", {"block": BLOCK})
        yield Driven(command, words, lose)


@contextmanager
def cluster(lent: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """Address of a cluster of one or two nodes, on loopback, and what loses the second; its processes end with it."""
    line, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=be_cluster, args=(theirs, lent))
    process.start()
    theirs.close()
    try:
        yield line.recv(), partial(line.send, "lose")
    finally:
        line.close()
        process.join()


def be_cluster(line: Connection, lent: int) -> None:
    """Start nodes, tell their address, and lose the second one when asked; stop when nobody listens.

    This is a process of its own: Ray sets signal handlers, which threads of the tries may not.
    """
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # all is on loopback
    from ray.cluster_utils import Cluster

    head = {"num_cpus": lent, "node_ip_address": "127.0.0.1", "include_dashboard": False}
    for late in range(STARTS):  # Ray gives a node 30 s, and everything else of the tests goes on meanwhile
        try:
            nodes = Cluster(initialize_head=True, head_node_args=head)
            break
        except Exception:
            if late == STARTS - 1:
                raise
    try:
        second = nodes.add_node(num_cpus=COUNT - lent) if lent < COUNT else None
        line.send(nodes.address)
        with suppress(EOFError):
            while line.recv():
                nodes.remove_node(second, allow_graceful=False)
    finally:
        nodes.shutdown()


def moment(command: Command, folder: Path, rng: random.Random) -> None:
    """Wait until a worker has begun, then for a random number of documents and some moments more."""
    goal, began = rng.randrange(0, DOCUMENTS // 2), documents(folder)
    command.until(lambda: bool(workers(folder)))
    command.until(lambda: documents(folder) >= min(DOCUMENTS - 4, began + goal))
    time.sleep(rng.uniform(0, 0.3))


def documents(folder: Path) -> int:
    """How many documents all shards have, those of further attempts counted again."""
    return sum(len({key[:3] for key in place.kept(path.parent)}) for path in folder.glob("shards/*/manifest.json"))


def workers(folder: Path) -> list[int]:
    """The processes that print into the logs of a run's workers."""
    logs = f"{folder / 'shards' / 'worker-'}"
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                if os.readlink(process / "fd" / "1").startswith(logs):
                    found.append(int(process.name))
    return sorted(found)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def gone_on(bench: Bench, number: int, words: list[str], work: Path, what: str) -> Outcome:
    """What a user does about a run whose command ended: goes on with it, or starts it where no shard has begun."""
    folder = work / "run"
    resume = ["run", "--resume", str(folder)]
    if not list(folder.glob("shards/*/manifest.json")):
        folder = work / "anew"
        resume = one_process(bench, number, folder)
    return judged(bench, number, Command([*resume, *words], work / "again", {"block": BLOCK}), folder, what)


def judged(bench: Bench, number: int, command: Command, folder: Path, what: str, tried: int = 1) -> Outcome:
    """Exit code 0 within the time limit, and the rows of the run by one process, no more and no fewer."""
    code = command.end()
    lost = place.lost(folder, whole(bench, number))
    notes = [] if code == 0 else [f"exit code {code}: {last_words(command.said())}"]
    notes += [f"{lost} rows lost"] if lost else []
    notes += ["something is left"] if code == 0 and not place.plain_end(folder) else []
    return Outcome(tried, tried * (not notes), lost, [f"{what}: {note}" for note in notes])
