"""An output folder that may not be written, that vanishes, or that another process writes."""

import json
import signal
import subprocess
from functools import partial
from pathlib import Path

from faults import place
from faults.bench import BLOCK, Bench, Fault, Outcome, expect, last_words, named, one_error
from faults.child import Command
from faults.kill import done
from faults.stop import both

NO_DISKS = "no mounts of its own"


def faults(bench: Bench) -> list[Fault]:
    frozen, gone, two = ((), (), (1,)) if bench.short else ((0, 2, 5), (0, 2, 4), (0, 1, 3))
    return [
        Fault("output folder read-only", [partial(read_only, bench, goal) for goal in frozen]),
        Fault("output folder vanishes", [partial(vanishes, bench, goal) for goal in gone]),
        Fault("a file in place of parts/", [partial(file_for_parts, bench)] * bench.count(1, 0)),
        Fault("two runs on one folder", [partial(two_runs, bench, goal) for goal in two]),
    ]


def read_only(bench: Bench, goal: int, work: Path) -> Outcome:
    """The disk is mounted read-only, from the beginning or meanwhile, and writable again later."""
    if not bench.disks:
        return Outcome(0, 0, 0, skipped=NO_DISKS)
    disk = mounted(work / "disk", "64m")
    folder, what = disk / "run", f"read-only after {goal} documents"
    if goal:
        command = Command(bench.words(folder), work / "said", {"block": BLOCK, "slow": 0.1, "small_disk": None})
        command.until(lambda: done(folder) >= goal)
    # Of the whole disk this is refused while a file is open for writing; what is mounted over it has none.
    subprocess.run(["mount", "--bind", disk, disk], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", disk], check=True)
    if not goal:
        command = Command(bench.words(folder), work / "said", {"block": BLOCK, "small_disk": None})
    code, kept = command.end(), place.kept(folder)
    subprocess.run(["umount", disk], check=True)
    message = refused(code, command, what, "Read-only file system", "cannot be written")
    command = bench.again(folder, 0.0, work / "end", {"small_disk": None})
    return both(message, bench.judged(folder, 0.0, command.end(), command, what, kept))


def vanishes(bench: Bench, goal: int, work: Path) -> Outcome:
    """rm -rf meanwhile: one line, and the same command makes the run again."""
    folder, what = work / "run", f"rm -rf after {goal} documents"
    command = Command(bench.words(folder), work / "said", {"block": BLOCK, "slow": 0.1})
    command.until(lambda: (folder / "manifest.json").exists() if not goal else done(folder) >= goal)
    while folder.exists():
        place.removed(folder)
    code = command.end()
    message = refused(code, command, what, "No such file or directory", "is not a run folder")
    place.removed(folder)
    return both(message, bench.resumed(folder, 0.0, work / "end", what))


def file_for_parts(bench: Bench, work: Path) -> Outcome:
    """parts/ of a stopped run is a file: refused in one line, and as ever once the folder is back."""
    folder, what = work / "run", "a file in place of parts/"
    command = Command(bench.words(folder), work / "said", {"block": BLOCK, "slow": 0.2})
    command.until(lambda: done(folder) >= 2)
    command.send(signal.SIGTERM)
    command.end()
    (folder / "parts").rename(work / "parts")
    (folder / "parts").write_text("no folder")
    command = bench.again(folder, 0.0, work / "refused")
    message = refused(command.end(), command, what, "parts")
    (folder / "parts").unlink()
    (work / "parts").rename(folder / "parts")
    return both(message, bench.resumed(folder, 0.0, work / "end", what))


def two_runs(bench: Bench, goal: int, work: Path) -> Outcome:
    """The second is refused with the first one's process named; killed, the first leaves no lock that binds."""
    folder, what = work / "run", f"a second run after {goal} documents"
    first = Command(bench.words(folder), work / "first", {"block": BLOCK, "slow": 0.5})
    first.until(lambda: (folder / "manifest.json").exists() and done(folder) >= goal)
    second = Command(["run", "--resume", str(folder)], work / "second", {"block": BLOCK})
    code = second.end()
    alive = first.alive()
    third = Command(["run", "--resume", str(folder)], work / "third", {"block": BLOCK})
    third_code = third.end()
    facts = json.loads((folder / ".lock").read_text()) if (folder / ".lock").exists() else {}
    first.send(signal.SIGKILL)
    first.end()
    problems = expect(
        {
            "the first was still at it": alive,
            f"refused with exit code 2, but {code}: {last_words(second.said())}": code == 2,
            f"the first one's process is named: {last_words(second.said())}": named(second.said(), str(first.pid)),
            "in one line": one_error(second.said()) is not None,
            f"refused again, but {third_code}": third_code == 2 and named(third.said(), str(first.pid)),
            f"the lock tells the process: {facts}": facts.get("pid") == first.pid,
        },
        what,
    )
    return both(problems, bench.resumed(folder, 0.0, work / "end", what))


def refused(code: int, command: Command, what: str, *reasons: str) -> Outcome:
    said = command.said()
    line = one_error(said)
    return expect(
        {
            f"exit code 2, but {code}": code == 2,
            f"one line that tells why: {last_words(said)}": line is not None
            and any(reason in line for reason in reasons),
        },
        what,
    )


def mounted(folder: Path, size: str) -> Path:
    """A small disk in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    return folder
