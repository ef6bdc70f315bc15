"""Workers of one run, on this machine or on a Ray cluster: some are killed, their driver is, or a disk or node is lost.

Every command has a time limit, and the run in the end is held against that of one process.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from faults import clusters, place
from faults.bench import BLOCK, Bench, Fault, Outcome, expect, last_words
from faults.child import PATIENCE, Command
from faults.folders import NO_DISKS, mounted
from faults.injected import fill
from faults.space import full
from faults.stop import both

COUNT = sum(clusters.CPUS)  # workers, of which two may be lost
REPEATS = 3  # of two tasks that stay whole: six shards
DOCUMENTS = REPEATS * 2 * place.LIMIT
GONE = 60.0 * PATIENCE  # seconds in which workers must end after their driver


@dataclass(frozen=True)
class Driven:
    """A run with workers under way; `words` say where these are. On Ray, `lose` kills the second node at once."""

    command: Command
    words: list[str]
    lose: Callable[[], None] | None = None


def faults(bench: Bench) -> list[Fault]:
    """On this machine."""
    kills = [partial(workers_killed, bench, number, False) for number in range(bench.count(5, 1))]
    drivers = [partial(driver_killed, bench, number, False) for number in range(bench.count(2, 1))]
    rooms = [partial(no_room, bench, number) for number in range(bench.count(2, 1))]
    joins = [partial(no_room_to_join, bench, number) for number in range(bench.count(4, 1))]
    return [
        Fault("two workers of a pool of three killed", kills),
        Fault("driver of a pool killed", drivers),
        Fault("disk full at a worker of a pool", rooms),
        Fault("disk full at the driver of a pool", joins),
    ]


def ray_faults(bench: Bench) -> list[Fault]:
    """On a Ray cluster of two nodes; twenty workers are killed."""
    kills = [partial(workers_killed, bench, number, True) for number in range(bench.count(10, 1))]
    drivers = [partial(driver_killed, bench, number, True) for number in range(bench.count(2, 1))]
    nodes = [partial(node_lost, bench, number) for number in range(bench.count(2, 1))]
    rooms = [partial(no_room_on_ray, bench, number) for number in range(bench.count(2, 1))]
    tried = {
        "two workers of three on Ray killed": kills,
        "driver of workers on Ray killed": drivers,
        "Ray node with two workers of three lost": nodes,
        "disk of workers on Ray full": rooms,
    }
    return [Fault(name, tries if clusters.INSTALLED else [without_ray]) for name, tries in tried.items()]


def without_ray(_: Path) -> Outcome:
    return Outcome(0, 0, 0, skipped=clusters.NO_RAY)


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
    """The node with two of the workers is lost at a random moment."""
    folder = work / "run"
    with driven(bench, number, True, work) as run:
        moment(run.command, folder, bench.rng("node", number))
        what = f"node {number}, lost with {documents(folder)} documents"
        assert run.lose
        run.lose()
        return judged(bench, number, run.command, folder, what)


def no_room(bench: Bench, number: int, work: Path) -> Outcome:
    """The folder of a shard is a disk of its own, which becomes full; with room, --resume goes on."""
    if not bench.disks:
        return Outcome(0, 0, 0, skipped=NO_DISKS)
    rng, folder, mine = bench.rng("no room", number), work / "run", 1 + number % 2
    with driven(bench, number, False, work) as run:
        run.command.until((folder / "shards").exists)
        disk = mounted(folder / "shards" / str(mine), "4m")
        goal = rng.randrange(1, place.LIMIT)
        run.command.until(lambda: len(list(disk.glob("parts/*.samples.parquet"))) >= goal)
        return filled(bench, number, run, disk, work, f"shard {mine} full after {goal} documents")


def no_room_to_join(bench: Bench, number: int, work: Path) -> Outcome:
    """When all shards are decoded, the run's disk is full but for some bytes; with room, --resume joins them."""
    if not bench.disks:
        return Outcome(0, 0, 0, skipped=NO_DISKS)
    disk, leave = mounted(work / "disk", "16m"), 8192 * number
    faults = {"block": BLOCK, "small_disk": None, "full_at_join": {"ballast": str(disk / "ballast"), "leave": leave}}
    words = ["--workers", str(COUNT)]
    command = Command([*one_process(bench, number, disk / "run"), *words], work / "said", faults)
    code, said = command.end(), command.said()
    (disk / "ballast").unlink()
    what = f"{leave} bytes left for the join"
    problems = expect({f"one line that tells why, not {code}: {last_words(said)}": code == 2 and full(said)}, what)
    again = Command(["run", "--resume", str(disk / "run"), *words], work / "again", {"small_disk": None})
    return both(problems, judged(bench, number, again, disk / "run", what))


def no_room_on_ray(bench: Bench, number: int, work: Path) -> Outcome:
    """All attempts at shards are on a disk of their own, which becomes full; with room, --resume goes on."""
    if not bench.disks:
        return Outcome(0, 0, 0, skipped=NO_DISKS)
    folder, goal = work / "run", bench.rng("no room on Ray", number).randrange(1, DOCUMENTS // 2)
    with driven(bench, number, True, work) as run:
        run.command.until((folder / "shards").exists)
        disk = mounted(folder / "shards", "16m")
        run.command.until(lambda: documents(folder) >= goal)
        return filled(bench, number, run, disk, work, f"shards full after {goal} documents")


def filled(bench: Bench, number: int, run: Driven, disk: Path, work: Path, what: str) -> Outcome:
    """Fill the disk, and take the ballast away when the run has ended."""
    fill(disk / "ballast", 0)
    code, said = run.command.end(), run.command.said()
    (disk / "ballast").unlink()
    problems = expect({f"one line that tells why, not {code}: {last_words(said)}": code == 2 and full(said)}, what)
    return both(problems, gone_on(bench, number, run.words, work, what))


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
def driven(bench: Bench, number: int, ray: bool, work: Path) -> Iterator[Driven]:
    """A run with workers, on this machine or on the cluster, which no other try has meanwhile."""
    words, lines = ["--workers", str(COUNT)], one_process(bench, number, work / "run")
    if not ray:
        yield Driven(Command([*lines, *words], work / "said", {"block": BLOCK}), words)
        return
    with clusters.cluster() as nodes:
        words += ["--ray", nodes.address]
        yield Driven(Command([*lines, *words], work / "said", {"block": BLOCK}), words, nodes.lose)


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
    results = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                if os.readlink(process / "fd" / "1").startswith(logs):
                    results.append(int(process.name))
    return sorted(results)


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
