"""The wall clock goes back by a year in the middle, or stands still."""

import time
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from faults.bench import BLOCK, Bench, Fault, Outcome, expect, last_words
from faults.child import Command
from faults.stop import both


def faults(bench: Bench) -> list[Fault]:
    return [
        Fault("clock set back by a year", [partial(back, bench, turn) for turn in range(bench.count(4, 0))]),
        Fault("two runs begun in one second", [partial(same_second, bench)] * bench.count(1, 0)),
    ]


def back(bench: Bench, turn: int, work: Path) -> Outcome:
    """From somewhere between the manifest and the scores on; every second one is also stopped and goes on."""
    after = bench.rng("clock", turn).randrange(2, 40)
    folder, temperature = work / "run", bench.temperature(turn)
    what = f"clock set back after {after} looks"
    command = Command(bench.words(folder, temperature), work / "said", {"block": BLOCK, "clock_back": after})
    code = command.end()
    result = bench.judged(folder, temperature, code, command, what, {})
    if code != 0:
        return result
    times = [pq.read_table(folder / "samples.parquet", columns=[n])[n].to_pylist() for n in SECONDS]
    rounds = pq.read_table(folder / "rounds.parquet", columns=["seconds"])["seconds"].to_pylist()
    lasted = {"every time is positive": all(0 <= t < 60 for t in [*times[0], *times[1], *rounds])}
    return both(result, expect(lasted, what))


SECONDS = ("prefill_seconds", "decode_seconds")


def same_second(bench: Bench, work: Path) -> Outcome:
    """Without --out each has a folder of its own, whose name holds the time."""
    faults = {"block": BLOCK, "clock_stopped": time.time(), "folder": str(work)}
    words = bench.words(work / "run")
    at = words.index("--out")
    words = [*words[:at], *words[at + 2 :]]
    commands = [Command(words, work / f"said-{n}", faults) for n in range(2)]
    codes = [command.end() for command in commands]
    folders = sorted(path.parent for path in (work / "runs").glob("*/summary.parquet"))
    said = " ".join(last_words(command.said()) for command in commands)
    problems = expect({f"both end well: {codes} {said}": codes == [0, 0], "two folders": len(folders) == 2}, "two runs")
    for folder in folders:
        problems = both(problems, bench.judged(folder, 0.0, 0, commands[0], folder.name, {}))
    return problems
