"""`make determinism`: whether every method of the bundled pair repeats itself, by the real command in fresh processes.

The methods run in groups. Each is held against itself in the same command once more (and another order of sets), with
other methods, in another order of --method, and in a run that was stopped twice and resumed. Prints a table; exit code
1 where anything differs but times.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import determinism
from determinism import FILTERED, TEMPERATURES, Facts, difference, facts, methods, of, suite
from rich.table import Column, Table

from specbench.base.console import console, progress

GROUP = 22  # methods of a run, at most
DOCUMENTS, TOKENS = 3, 10  # of each of two tasks; enough to be stopped twice
SAME = "same"
COLUMNS = ("twice", "beside", "order", "resumed")
COMMAND = (sys.executable, "-c", "from specbench.cli import main; main()")


def command(names: list[str], folder: Path, temperature: float, runtime: str) -> list[str]:
    """The arguments of a run of some methods in this order."""
    filters = [f"--{name.replace('_', '-')}={value}" for name, value in FILTERED.items()] if temperature else []
    return [
        *("run", "--pair", "pocket", "--suite", str(suite(folder.parent, DOCUMENTS, TOKENS)), "--device", "cpu"),
        *("--baseline", "none", "--temperature", str(temperature), "--runtime", runtime, *filters),
        *(word for name in names for word in ("--method", name)),
        *(word for setting in determinism.chosen_settings(names) for word in ("--set", setting)),
    ]


def start(arguments: list[str], hashes: int = 1) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(hashes), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*COMMAND, *arguments], env=environment, **pipes)


def finished(process: subprocess.Popen[str], *allowed: int) -> int:
    said, _ = process.communicate()
    if process.returncode not in (0, *allowed):
        raise SystemExit(f"{' '.join(process.args)}\nended with {process.returncode}:\n{said[-3000:]}")  # type: ignore[arg-type]
    return process.returncode


def whole(names: list[str], folder: Path, temperature: float, runtime: str, hashes: int = 1) -> Facts:
    """A run in one go."""
    finished(start([*command(names, folder, temperature, runtime), "--out", str(folder)], hashes))
    return facts(folder)


def recorded(folder: Path) -> int:
    """Documents of an unfinished run."""
    return len(list(folder.glob("parts/*.samples.parquet")))


def stopped(names: list[str], folder: Path, temperature: float, runtime: str) -> Facts:
    """A run that is stopped and resumed twice, by the signals that a service and Ctrl-C send."""
    arguments = [*command(names, folder, temperature, runtime), "--out", str(folder)]
    for number in (signal.SIGTERM, signal.SIGINT):
        done = recorded(folder)
        process = start(arguments)
        while process.poll() is None and recorded(folder) == done:  # by then it listens to signals
            time.sleep(0.005)
        process.send_signal(number)
        if finished(process, 130) != 130:
            raise SystemExit(f"{folder} was not stopped in time; ask for more DOCUMENTS")
        arguments = ["run", "--resume", str(folder)]
    finished(start(arguments))
    return facts(folder)


def groups(names: list[str]) -> list[list[str]]:
    """Neighbours by name."""
    return [names[at : at + GROUP] for at in range(0, len(names), GROUP)]


def mixed(names: list[str]) -> list[list[str]]:
    """As many groups, each with some methods of every other group."""
    count = len(groups(names))
    return [names[at::count] for at in range(count)]


def runs(names: list[str], root: Path, temperature: float, runtime: str) -> Iterator[tuple[str, Facts]]:
    """What the methods did, first under "" and then by column; each run as soon as it is there."""
    for at, group in enumerate(groups(names)):
        place = root / f"{temperature}-{at}"
        place.mkdir()
        yield "", whole(group, place / "first", temperature, runtime)
        yield "twice", whole(group, place / "twice", temperature, runtime, hashes=2)
        yield "order", whole(group[::-1], place / "order", temperature, runtime)
        yield "resumed", stopped(group, place / "resumed", temperature, runtime)
    for at, group in enumerate(mixed(names)):
        place = root / f"{temperature}-mixed-{at}"
        place.mkdir()
        yield "beside", whole(group, place / "mixed", temperature, runtime)


def held(name: str, column: str, result: dict[str, Facts]) -> str:
    """SAME, or where a method's texts differ from its first ones."""
    first, other = of(name, result[""]), of(name, result[column])
    if first.keys() != other.keys() or not first:
        return "texts are missing"
    return difference(first, other) or SAME


def main(runtime: str) -> int:
    every = [(temperature, methods(temperature)) for temperature in TEMPERATURES]
    count = sum((len(COLUMNS) + 1) * len(groups(names)) for _, names in every)
    cells: dict[tuple[str, str, float], str] = {}
    with tempfile.TemporaryDirectory() as folder, progress("runs", count) as advance:
        for temperature, names in every:
            result: dict[str, Facts] = {"": {}, **{column: {} for column in COLUMNS}}
            for column, one in runs(names, Path(folder), temperature, runtime):
                result[column] |= one
                advance(1)
            cells |= {(name, column, temperature): held(name, column, result) for name in names for column in COLUMNS}
    places = [(column, temperature) for temperature in TEMPERATURES for column in COLUMNS]
    table = Table(Column("method", no_wrap=True), *(f"{column}\nT={temperature:g}" for column, temperature in places))
    for name in methods(0):
        own = [cells.get((name, *place), "-") for place in places]
        table.add_row(name, *(cell if cell in (SAME, "-") else "NO" for cell in own))
    console.print(table)
    wrong = [f"{name}, {column}, T = {t:g}: {cell}" for (name, column, t), cell in cells.items() if cell != SAME]
    for line in wrong:
        console.print(line, highlight=False, soft_wrap=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "eager"))
