"""Ctrl-C and SIGTERM: once finishes the document, twice stops at once; while loading, decoding and scoring."""

import signal
import time
from functools import partial
from pathlib import Path

from faults.bench import BLOCK, Bench, Fault, Outcome, expect, last_words, named
from faults.child import Command
from faults.kill import done

AT_ONCE = 3.0  # seconds; two on a machine that has nothing else to do


def faults(bench: Bench) -> list[Fault]:
    c, t = signal.SIGINT, signal.SIGTERM
    numbers = range(bench.count(3, 1))
    rest = 0 if bench.short else 1
    return [
        Fault("Ctrl-C", [partial(decoding, bench, c, False, n) for n in numbers]),
        Fault("Ctrl-C twice", [partial(decoding, bench, c, True, n) for n in numbers]),
        Fault("SIGTERM", [partial(decoding, bench, t, False, n) for n in range(2 * rest)]),
        Fault("Ctrl-C or SIGTERM while loading", [partial(loading, bench, n) for n in range(bench.count(4, 1))]),
        Fault("Ctrl-C while scoring", [partial(scoring, bench, n) for n in range(3 * rest)]),
    ]


def decoding(bench: Bench, number: int, twice: bool, turn: int, work: Path) -> Outcome:
    rng = bench.rng("stop", number, twice, turn)
    folder, temperature, goal = work / "run", bench.temperature(turn), rng.randrange(1, 6)
    what = f"{signal.Signals(number).name}{' twice' * twice} after {goal} documents"
    command = Command(bench.words(folder, temperature), work / "said", {"block": BLOCK, "slow": 0.4})
    command.until(lambda: done(folder) >= goal)
    time.sleep(rng.uniform(0, 0.3))
    there = done(folder)
    began = time.monotonic()
    command.send(number)
    if twice:
        command.until(lambda: "finishing" in command.said(), AT_ONCE)
        began = time.monotonic()
        command.send(number)
    code = command.end()
    took, after = time.monotonic() - began, done(folder)
    problems = expect(
        {
            f"exit code 130, but {code}: {last_words(command.said())}": code == 130,
            f"it stops at once, but took {took:.1f} s": not twice or took < AT_ONCE,
            f"it stops behind the document under way, but went on from {there} to {after}": after <= there + 1,
            "it says how to go on": named(command.said(), f"run --resume {folder}"),
            "no traceback": "Traceback" not in command.said(),
            "there are no scores yet": not (folder / "scores.parquet").exists(),
        },
        what,
    )
    return both(problems, bench.resumed(folder, temperature, work / "end", what))


def loading(bench: Bench, turn: int, work: Path) -> Outcome:
    """Right when loading is announced, or somewhere in it."""
    rng = bench.rng("loading", turn)
    number, folder = (signal.SIGINT, signal.SIGTERM)[turn % 2], work / "run"
    command = Command(bench.words(folder), work / "said", {"block": BLOCK})
    command.until(lambda: "loading models" in command.said())
    time.sleep(0 if turn < 2 else rng.uniform(0, 0.5))
    before = done(folder)
    command.send(number)
    code = command.end()
    what = f"{signal.Signals(number).name} while loading"
    problems = expect(
        {
            f"exit code 130, but {code}: {last_words(command.said())}": code == 130,
            "no traceback": "Traceback" not in command.said(),
            "nothing is decoded any more": done(folder) <= before + 1,
        },
        what,
    )
    return both(problems, bench.resumed(folder, 0.0, work / "end", what))


def scoring(bench: Bench, turn: int, work: Path) -> Outcome:
    """Once lets it finish; twice stops, and only scoring is left to do."""
    folder, twice = work / "run", turn != 1
    command = Command(bench.words(folder), work / "said", {"block": BLOCK, "slow_scoring": 0.5 if turn == 1 else 2.0})
    command.until(lambda: (folder / "samples.parquet").exists() and not (folder / "parts").exists())
    command.send(signal.SIGINT)
    if twice:
        time.sleep(0.1)
        command.send(signal.SIGINT)
    code = command.end()
    what = f"Ctrl-C{' twice' * twice} while scoring"
    problems = expect(
        {
            f"exit code 130, or 0 where it could finish, but {code}: {last_words(command.said())}": code in (0, 130),
            "no traceback": "Traceback" not in command.said(),
            "the scores are whole or not there": code == 130 or (folder / "summary.parquet").exists(),
        },
        what,
    )
    return both(problems, bench.resumed(folder, 0.0, work / "end", what))


def both(one: Outcome, other: Outcome) -> Outcome:
    """One try that was looked at twice."""
    notes = one.notes + other.notes
    return Outcome(1, int(not notes), one.lost + other.lost, notes)
