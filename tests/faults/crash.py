"""The states that a disk may be in after a power cut, at every moment of a small run's writing.

The run's file operations are watched while it is written: what each file held when it was synced, and the changes of
names in each folder. A cut may come behind any of them. Names that were not synced with their folder may have changed
or not, each for itself; a file that was never synced, or was written since, may hold anything.
"""

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DOCUMENTS, BLOCK = 8, 3
METHODS = ("a", "b")


@dataclass(frozen=True)
class Named:
    """A change of names: `path` is now file `inode`, or nothing (None); `gone` is another name that went with it."""

    folder: str
    path: str
    inode: int | None
    gone: str = ""
    is_folder: bool = False


@dataclass
class Log:
    """What happened: changes of names, syncs of folders (a path), contents that were synced, and documents done."""

    root: str
    events: list[Any] = field(default_factory=list)
    written: dict[int, bytes] = field(default_factory=dict)  # by inode, as it is at the end
    known: set[str] = field(default_factory=set)
    keeping: list[int] = field(default_factory=list)  # open, so that an inode is not given to another file

    def see(self, path: str) -> int | None:
        """A file that was made without a word (by C++): its name begins here."""
        if path in self.known or not path.startswith(self.root) or not os.path.exists(path):
            return os.stat(path).st_ino if os.path.exists(path) else None
        self.known.add(path)
        inode = os.stat(path).st_ino
        self.keeping.append(os.open(path, os.O_RDONLY))
        self.events.append(Named(os.path.dirname(path), path, inode, is_folder=os.path.isdir(path)))
        return inode


@contextmanager
def watched(root: Path) -> Iterator[Log]:
    """A log that fills with what this process does to files under a folder."""
    log, on, fsync = Log(str(root)), True, os.fsync

    def synced(opened: int) -> None:
        fsync(opened)
        path = os.readlink(f"/proc/self/fd/{opened}")
        if not on or not path.startswith(log.root):
            return
        inode = log.see(path)
        if os.path.isdir(path):
            log.events.append(path)
        elif inode is not None:
            log.events.append((inode, Path(path).read_bytes()))

    def hook(event: str, words: tuple[Any, ...]) -> None:
        if not on or event not in ("os.rename", "os.remove", "os.rmdir", "os.mkdir"):
            return
        path = place_of(words[0], words[2] if event == "os.rename" else words[-1])
        if not path.startswith(log.root):
            return
        folder = os.path.dirname(path)
        if event == "os.rename":
            to = place_of(words[1], words[3])
            inode = log.see(path)
            log.written[inode or 0] = Path(path).read_bytes()
            log.known.discard(path)
            log.known.add(to)
            log.events.append(Named(os.path.dirname(to), to, inode, gone=path))
        elif event == "os.mkdir":
            log.events.append(Named(folder, path, 0, is_folder=True))
            log.known.add(path)
        else:
            log.see(path)
            log.known.discard(path)
            log.events.append(Named(folder, path, None))

    def place_of(path: Any, folder: Any) -> str:
        at = f"{os.readlink(f'/proc/self/fd/{folder}')}/" if isinstance(folder, int) and folder >= 0 else ""
        return os.path.abspath(at + os.fspath(path))

    sys.addaudithook(hook)
    os.fsync = synced
    try:
        yield log
    finally:
        on = False
        os.fsync = fsync
        for opened in log.keeping:
            os.close(opened)


def rows_of(index: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """The samples, rounds and states of a made document."""
    rng = random.Random(index)
    keys = [{"repeat": 0, "task": "t", "doc_id": index, "method": name, "warmup": False} for name in METHODS]
    samples = [key | {"text": f"text {index}", "tokens": [rng.randrange(99) for _ in range(9)]} for key in keys]
    rounds = [key | {"round": n, "seconds": rng.random(), "committed": 3} for key in keys for n in range(3)]
    return samples, rounds, {name: [index, rng.random()] for name in METHODS}


def write_run(folder: Path, done: list[Any] | None = None) -> list[str]:
    """Write what is missing of the made run, and finish it; returns what was warned of. Fills `done` on the way."""
    from specbench.results import recorder

    recorder.BLOCK = BLOCK
    warned: list[str] = []
    one = recorder.Recorder(folder, warned.append)
    if done is not None:
        done.append(0)
    if not one.merged:
        for index in range(one.done(), DOCUMENTS):
            if index and index == one.done() and done is None:
                assert one.states(index - 1) == rows_of(index - 1)[2], f"states of document {index - 1}"
            one.write(index, *rows_of(index))
            if done is not None:
                done.append(index + 1)
    one.finish()
    return warned


def crash_states(work: Path, part: int, stretches: int, every: int, seed: int) -> tuple[int, list[str]]:
    """Try the cuts of one of several stretches of the run; how many states there were, and what was wrong of which."""
    whole = work / "whole"
    whole.mkdir()
    with watched(whole) as log:

        class Done(list[Any]):
            def append(self, count: Any) -> None:
                log.events.append(count)

        write_run(whole, Done())
    wanted = contents(whole)
    os.fsync = lambda opened: None  # no cut comes any more
    rng = random.Random(f"{seed}/{part}")
    tried, notes = 0, []
    cuts = range(part * len(log.events) // stretches, (part + 1) * len(log.events) // stretches)
    for cut in cuts:
        for number, state in enumerate(states(log, cut, rng)):
            if rng.randrange(every):
                continue
            tried += 1
            folder = work / f"{cut}-{number}"
            notes += [
                f"cut behind event {cut}, state {number}: {note}" for note in wrong(folder, state, wanted, log, cut)
            ]
    return tried, notes


def states(log: Log, cut: int, rng: random.Random) -> Iterator[dict[str, bytes | None]]:
    """Disks that may be found after a cut behind `cut` events: bytes by path, None for a folder."""
    happened = log.events[: cut + 1]
    last_sync = {event: at for at, event in enumerate(happened) if isinstance(event, str)}
    sure, open_ = [], []
    for at, event in enumerate(happened):
        if isinstance(event, Named):
            (sure if at < last_sync.get(event.folder, -1) else open_).append((at, event))
    some = [[one for one in open_ if rng.random() < 0.5] for _ in range(2)]
    chosen = [open_, [], open_[-1:], *some]
    ways = ("empty", "half", "zero", "random", "whole")
    seen = set()
    for kept in chosen:
        for way in ways:
            key = (tuple(at for at, _ in kept), way)
            if key in seen:
                continue
            seen.add(key)
            yield built(log, happened, sorted(sure + kept, key=lambda one: one[0]), way, rng)


def built(log: Log, happened: list[Any], names: list[Any], way: str, rng: random.Random) -> dict[str, bytes | None]:
    result: dict[str, int | None] = {}
    folders = {log.root}
    for _, event in names:
        if event.gone:
            result.pop(event.gone, None)
        if event.is_folder:
            folders.add(event.path)
        elif event.inode is None:
            result.pop(event.path, None)
            folders.discard(event.path)
        else:
            result[event.path] = event.inode
    synced = {event[0]: event[1] for event in happened if isinstance(event, tuple)}
    disk: dict[str, bytes | None] = dict.fromkeys(sorted(folders))
    for path, inode in result.items():
        if os.path.dirname(path) in folders and inode is not None:
            whole = log.written.get(inode, b"")
            disk[path] = synced[inode] if inode in synced else torn(whole, way, rng)
    return disk


def torn(whole: bytes, way: str, rng: random.Random) -> bytes:
    result = {"empty": b"", "half": whole[: len(whole) // 2], "zero": bytes(len(whole)), "whole": whole}
    return result[way] if way in result else rng.randbytes(len(whole))


def wrong(folder: Path, disk: dict[str, bytes | None], wanted: Any, log: Log, cut: int) -> list[str]:
    """What is not as it must be when a run goes on from such a disk."""
    from specbench.results import records

    for path, data in disk.items():
        to = folder / os.path.relpath(path, log.root)
        if data is None:
            to.mkdir(parents=True, exist_ok=True)
        else:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(data)
    folder.mkdir(exist_ok=True)
    reported = max((event for event in log.events[: cut + 1] if isinstance(event, int)), default=0)
    try:
        there = {row["doc_id"] for row in records.read_rows(folder, "samples", ["doc_id"]).to_pylist()}
        if missing := set(range(reported)) - there:
            return [f"documents {sorted(missing)} of {reported} that were done are lost"]
        before = [(path.name, path.read_bytes()) for path in folder.rglob("*.parquet")]
        warned = write_run(folder)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    notes = [] if contents(folder) == wanted else ["rows are lost or others"]
    for name, data in before:
        if not readable(data) and not any(name in line for line in warned):
            notes.append(f"{name} is torn, and nobody says so: {warned}")
    if warned and reported and all(readable(data) for _, data in before):
        notes.append(f"a warning without a reason: {warned}")
    return notes


def readable(data: bytes) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read()
        return True
    except (OSError, pa.ArrowException):
        return False


def contents(folder: Path) -> Any:
    import pyarrow.parquet as pq

    return [pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("samples", "rounds")]
