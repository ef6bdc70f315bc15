"""Two workers on one run, of which one is killed or has no room on its disk; then its command again, and `join`."""

from functools import partial
from pathlib import Path
from typing import Any

from faults import place
from faults.bench import BLOCK, Bench, Fault, Outcome, expect, last_words
from faults.child import Command
from faults.folders import NO_DISKS, mounted
from faults.kill import killed
from faults.space import full
from faults.stop import both


def faults(bench: Bench) -> list[Fault]:
    moments = [partial(one_is_killed, bench, number) for number in range(bench.count(20, 1))]
    rooms = [partial(one_has_no_room, bench, number) for number in range(bench.count(4, 1))]
    return [Fault("one worker of two killed", moments), Fault("disk full at one worker of two", rooms)]


def one_is_killed(bench: Bench, number: int, work: Path) -> Outcome:
    """At a random moment of its shard, once or twice."""
    rng = bench.rng("worker", number)
    folder, temperature, mine = work / "run", bench.temperature(number), 1 + number % 2
    other = worker(bench, folder, temperature, 3 - mine, work / "other")
    after = rng.random() * bench.seconds[False]
    died = killed(worker(bench, folder, temperature, mine, work / "killed"), after)
    if died and rng.random() < 0.4:
        killed(worker(bench, folder, temperature, mine, work / "killed-again"), rng.random() * bench.seconds[False])
    what = f"try {number}, shard {mine} after {after:.2f} s{'' if died else ' (it had ended)'}, T {temperature:g}"
    return joined(bench, folder, temperature, mine, other, work, what)


def one_has_no_room(bench: Bench, number: int, work: Path) -> Outcome:
    """Its folder is a disk of its own, which becomes full."""
    if not bench.disks:
        return Outcome(0, 0, 0, skipped=NO_DISKS)
    folder, mine = work / "run", 1 + number % 2
    disk = mounted(folder / "shards" / str(mine), "4m")
    other = worker(bench, folder, 0.0, 3 - mine, work / "other")
    at = 3 + int(bench.rng("room", number).random() * bench.events / 2)
    event = {"folder": str(disk), "at": at, "what": "fill", "ballast": str(disk / "ballast")}
    command = worker(bench, folder, 0.0, mine, work / "full", {"small_disk": None, "at_events": event})
    code, said = command.end(), command.said()
    (disk / "ballast").unlink(missing_ok=True)
    what = f"shard {mine} full at event {at}"
    problems = expect({f"one line that tells why, not {code}: {last_words(said)}": code == 0 or full(said)}, what)
    return both(problems, joined(bench, folder, 0.0, mine, other, work, what))


def worker(
    bench: Bench, run: Path, temperature: float, number: int, output: Path, faults: dict[str, Any] | None = None
) -> Command:
    words = [*bench.words(run, temperature), "--shard", f"{number}/2"]
    return Command(words, output, {"block": BLOCK, "small_disk": None} | (faults or {}))


def joined(bench: Bench, folder: Path, temperature: float, mine: int, other: Command, work: Path, what: str) -> Outcome:
    """The shard's command again, then the join; what was on the disk before is in the run, warm-ups aside."""
    shard = folder / "shards" / str(mine)
    kept = {key: seconds for key, seconds in place.kept(shard).items() if not key[-1]}
    again = worker(bench, folder, temperature, mine, work / "again")
    codes = again.end(), other.end()
    join = Command(["join", str(folder)], work / "join", {"small_disk": None})
    code = join.end()
    problems = expect({f"exit codes 0, but {codes}: {last_words(again.said() + other.said())}": codes == (0, 0)}, what)
    return both(problems, bench.judged(folder, temperature, code, join, what, kept))
