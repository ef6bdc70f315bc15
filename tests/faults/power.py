"""Power cuts. The disk may have kept whatever it liked of a file that was not synced, and any of the names not synced
with their folder; what was synced stays. Every moment of a small run's writing is tried, and the command on torn files.
"""

import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from faults.bench import BLOCK, Bench, Fault, Outcome, expect, last_words, named
from faults.child import CONTEXT, Command
from faults.crash import crash_states
from faults.kill import done
from faults.stop import both

LASTING = 4  # of the newest files, how many may be torn


def faults(bench: Bench) -> list[Fault]:
    stretches = bench.count(8, 1)
    every = bench.count(2, 60)  # of the states
    simulated = [partial(simulated_cuts, bench, part, stretches, every) for part in range(stretches)]
    torn = [partial(torn_files, bench, number) for number in range(bench.count(16, 0))]
    return [Fault("power cut, all states of the disk", simulated), Fault("power cut, newest files torn", torn)]


def simulated_cuts(bench: Bench, part: int, stretches: int, every: int, work: Path) -> Outcome:
    """In a process of its own, whose file operations are watched."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=send, args=(theirs, work, part, stretches, every, bench.seed))
    process.start()
    theirs.close()
    try:
        tried, notes = ours.recv()
    except EOFError:
        tried, notes = 1, ["the process ended without a word"]
    process.join()
    failed = {note.split(":")[0] for note in notes}
    lost = sum("lost" in note for note in notes)
    return Outcome(tried, tried - min(tried, len(failed)), lost, notes[:5])


def send(pipe, work: Path, part: int, stretches: int, every: int, seed: int) -> None:
    pipe.send(crash_states(work, part, stretches, every, seed))
    pipe.close()


def torn_files(bench: Bench, number: int, work: Path) -> Outcome:
    """A run that was killed, whose newest files are cut, zeroed or scrambled: named, set aside, decoded again."""
    rng = bench.rng("torn", number)
    folder, temperature, goal = work / "run", bench.temperature(number), rng.randrange(2, 7)
    command = Command(bench.words(folder, temperature), work / "said", {"block": BLOCK, "slow": 0.1})
    command.until(lambda: done(folder) >= goal)
    command.send(signal.SIGKILL)
    command.end()
    parts = sorted((folder / "parts").glob("*.*"), key=lambda path: path.stat().st_mtime_ns)
    newest = parts[-rng.randrange(1, LASTING + 1) :]
    for path in newest:
        tear(path, rng)
    what = f"{len(newest)} newest files torn after {done_before(parts)} documents: {[path.name for path in newest]}"
    command = bench.again(folder, temperature, work / "end")
    code = command.end()
    lines = [path.name for path in newest if path.suffix == ".parquet" and named(command.said(), path.name)]
    tables = [path for path in newest if path.suffix == ".parquet"]
    warned = expect({f"a torn file is named: {last_words(command.said())}": lines or not counted(tables, parts)}, what)
    return both(warned, bench.judged(folder, temperature, code, command, what, {}))


def counted(torn: list[Path], parts: list[Path]) -> bool:
    """Whether a document that was done is torn: one whose samples were not yet there is simply not done."""
    samples = {path.name.split(".")[0] for path in parts if path.name.endswith("samples.parquet")}
    return any(path.name.split(".")[0] in samples for path in torn)


def done_before(parts: list[Path]) -> int:
    return len([path for path in parts if path.name.endswith("samples.parquet")])


def tear(path: Path, rng: random.Random) -> None:
    """What a disk may make of a file that was not synced."""
    whole = path.read_bytes()
    half = whole[: len(whole) // 2]
    ways: list[Callable[[], bytes]] = [
        lambda: b"",
        lambda: half,
        lambda: bytes(len(whole)),
        lambda: half + bytes(len(whole) - len(half)),
        lambda: rng.randbytes(len(whole)),
        lambda: whole[: len(whole) // 3] + rng.randbytes(40) + whole[len(whole) // 3 + 40 :],
    ]
    path.write_bytes(rng.choice(ways)())
