"""A full disk under everything that is written: one line, nothing half written, and as ever once there is room."""

from functools import partial
from pathlib import Path

from faults import place, writers
from faults.bench import BLOCK, Bench, Fault, Outcome, expect, last_words, named, one_error
from faults.child import Command
from faults.folders import NO_DISKS, mounted
from faults.injected import fill
from faults.stop import both

OLD = b"what was there before\n"


def faults(bench: Bench) -> list[Fault]:
    chosen = [writer for writer in writers.WRITERS if writer.short or not bench.short]
    moments = range(bench.count(16, 1))
    return [
        Fault("disk full in a run", [partial(in_a_run, bench, number, len(moments)) for number in moments]),
        Fault("disk full at the other writers", [partial(at_a_writer, bench, one) for one in chosen]),
    ]


def in_a_run(bench: Bench, number: int, count: int, work: Path) -> Outcome:
    """Before one of its operations on files the disk becomes full, to the last byte or but for some."""
    if not bench.disks:
        return Outcome(0, 0, 0, skipped=NO_DISKS)
    rng = bench.rng("space", number)
    disk = mounted(work / "disk", "4m")
    folder, ballast = disk / "run", disk / "ballast"
    at, leave = 2 + int((number + rng.random()) / count * (bench.events - 4)), rng.choice((0, 0, 4096, 16384))
    event = {"folder": str(folder), "at": at, "what": "fill", "ballast": str(ballast), "leave": leave}
    command = Command(bench.words(folder), work / "said", {"block": BLOCK, "small_disk": None, "at_events": event})
    code, said = command.end(), command.said()
    what = f"{leave} bytes left at event {at} of {bench.events}, {len(place.kept(folder))} samples"
    finished = (code == 0 and leave > 0) or (code == 0 and at > bench.events - 12)  # what was left was enough
    problems = expect(
        {
            f"exit code 2, but {code}: {last_words(said)}": code == 2 or finished,
            f"one line that tells why: {last_words(said)}": finished or full(said),
            "no file on its way": not [path.name for path in folder.rglob("*.new")],
        },
        what,
    )
    kept = place.kept(folder)
    ballast.unlink(missing_ok=True)
    if finished:
        return both(problems, bench.judged(folder, 0.0, 0, command, what, kept))
    command = bench.again(folder, 0.0, work / "end", {"small_disk": None})
    return both(problems, bench.judged(folder, 0.0, command.end(), command, what, kept))


def at_a_writer(bench: Bench, writer: writers.Writer, work: Path) -> Outcome:
    """A command whose --out is on a full disk, where an older file of that name stands; then with room."""
    if not bench.disks:
        return Outcome(0, 0, 0, skipped=NO_DISKS)
    disk = mounted(work / "disk", "256m" if writer.large else "8m")
    place_of_writer = writers.Place(bench, work, disk)
    words = writer.words(place_of_writer)
    out = disk / writer.out
    if not writer.fresh:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(OLD)
    before = sorted(disk.rglob("*"))
    fill(disk / "ballast", writer.leave)
    faults = {"folder": str(work), "small_disk": None, "idle": None}
    faults |= {"environment": {"SPECBENCH_CACHE": str(disk / "cache")}} if writer.cache else {}
    command = Command(words, work / "said", faults)
    code, said = command.end(), command.said()
    (disk / "ballast").unlink()
    left = [path for path in sorted(disk.rglob("*")) if path not in before and path.is_file()]
    problems = expect(
        {
            f"exit code {writer.refused}, but {code}: {last_words(said)}": code == writer.refused,
            f"one line that tells why: {last_words(said)}": says_why(said, writer),
            "the older file is whole": writer.fresh or out.read_bytes() == OLD,
            f"nothing is left, but {left}": writer.cache or not left,
        },
        writer.name,
    )
    command = Command(words, work / "again", faults)
    code = command.end()
    there = out.exists() and (writer.fresh or out.read_bytes() != OLD)
    again = {
        f"as ever with room, but {code}: {last_words(command.said())}": code == 0,
        f"{out.name} is there": there,
        "nothing is on its way": not list(disk.rglob("*.new")),
    }
    return both(problems, expect(again, writer.name))


def says_why(said: str, writer: writers.Writer) -> bool:
    line = one_error(said) if writer.refused else said
    return line is not None and named(line, writer.tells) and "Traceback" not in said


def full(said: str) -> bool:
    return one_error(said) is not None and named(said, "No space left on device")
