"""kill -9 at any moment of a run, from its loading to its scores, then --resume until it is done."""

import signal
import time
from functools import partial
from pathlib import Path

from faults import place
from faults.bench import BLOCK, Bench, Fault, Outcome
from faults.child import Command

MORE = 0.4  # how often a run that goes on is killed again


def faults(bench: Bench) -> list[Fault]:
    moments = [partial(at_a_moment, bench, number) for number in range(bench.count(50, 1))]
    events = [partial(at_an_event, bench, number) for number in range(bench.count(30, 2))]
    return [Fault("kill -9 at a random moment", moments), Fault("kill -9 before a file operation", events)]


def at_a_moment(bench: Bench, number: int, work: Path) -> Outcome:
    """Every other process is a fresh one, that imports everything. One that ended before the moment does not count."""
    rng = bench.rng("moment", number)
    folder, temperature, fresh = work / "run", bench.temperature(number), not bench.short and number % 4 < 2
    share = rng.random()
    for part in (1.0, 0.7, 0.5, 0.3):
        after = share * part * bench.seconds[fresh]
        command = Command(bench.words(folder, temperature), work / "said", {"block": BLOCK}, fresh)
        if killed(command, after):
            break
        place.removed(folder)
    else:
        return Outcome(0, 0, 0)
    what = f"try {number}, after {after:.2f} s, temperature {temperature:g}, {done(folder)} documents done"
    kept = place.kept(folder)
    while rng.random() < MORE and not (folder / "summary.parquet").exists():
        after = rng.random() * bench.seconds[False]
        command = bench.again(folder, temperature, work / "more")
        if not killed(command, after):
            break
        what += f", again after {after:.2f} s"
    result = bench.resumed(folder, temperature, work / "end", what)
    gone = sum(place.kept(folder).get(key) != seconds for key, seconds in kept.items())
    result.lost += gone
    if gone:
        result.recovered = 0
        result.notes.append(f"{what}: {gone} rows of before the first kill are gone or others")
    return result


def at_an_event(bench: Bench, number: int, work: Path) -> Outcome:
    """By its own hand, right before one of the operations on files that such a run has."""
    rng = bench.rng("event", number)
    folder, temperature = work / "run", bench.temperature(number)
    count = bench.count(30, 2)
    at = 1 + int((number + rng.random()) / count * bench.events)  # one in each stretch
    event = {"at_events": {"folder": str(folder), "at": at, "what": "kill"}, "block": BLOCK}
    command = Command(bench.words(folder, temperature), work / "said", event)
    code = command.end()
    what = f"event {at} of {bench.events}, temperature {temperature:g}, {done(folder)} documents done"
    if code != -signal.SIGKILL:
        return Outcome(1, 0, 0, [f"{what}: it was not killed but ended with {code}"])
    return bench.resumed(folder, temperature, work / "end", what)


def killed(command: Command, after: float) -> bool:
    """Kill a command after so many seconds; False if it had ended."""
    end = time.monotonic() + after
    while command.alive() and time.monotonic() < end:
        time.sleep(0.002)
    command.send(signal.SIGKILL)
    return command.end() == -signal.SIGKILL


def done(folder: Path) -> int:
    return len({key[:3] for key in place.kept(folder)})
