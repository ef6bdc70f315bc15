"""Every file that specbench reads, made hostile: each must give a value or one line that says what is wrong.

`python tests/fuzz.py --inputs 20000` runs the long profile: a table of readers, with failures (none), and the inputs
that failed in the folder `--keep`. `test_hostile_files.py` runs a short part of it.

A case fails where a reader raises anything but a UserError of one line, takes over SECONDS, or over MEMORY more, starts
a program, or writes anywhere but in its own folder.
"""

import argparse
import contextlib
import faulthandler
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fuzz_mutations
from rich.console import Console
from rich.table import Table

from specbench.base.console import progress
from specbench.config import UserError
from specbench.engine.models.tokenizer import TRIAL

SECONDS = 5  # of the processor, and WAITED of a clock: a pipe that nobody writes to costs no time
WAITED = 30
MEMORY = 500 * 2**20
LONGEST = 4000  # characters of an error
PROGRAMS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "pty.spawn", "os.startfile")
TRYING = [sys.executable, "-I", "-c", TRIAL]  # a tokenizer is loaded apart; it is data, and runs nothing
PASSING = ("git", "load", "clock_mhz", "temperature_c", "command")  # what is different from one call to the next
# Python's other calls that change files, with the places of paths and of the open folders that they are in.
CHANGES = {
    **{"os.remove": [(0, 1)], "os.rmdir": [(0, 1)], "os.mkdir": [(0, 2)], "os.chmod": [(0, 2)]},
    **{"os.symlink": [(1, 2)], "os.link": [(1, 3)], "os.rename": [(0, 2), (1, 3)]},
    **{"os.chown": [(0, 3)], "os.utime": [(0, 3)], "os.truncate": [(0, None)]},
}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC


@dataclass(frozen=True)
class Target:
    """A reader: `make` writes valid files into a folder and tells which there are, with the kind of each.

    `read` is given the folder, and some randomness to choose what is read from it. `share` is how many of the inputs it
    gets, next to others.
    """

    name: str
    make: Callable[[Path], dict[str, str]]
    read: Callable[[Path, random.Random], object]
    share: float = 1.0


@dataclass
class Outcome:
    valid: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    messages: Counter[str] = field(default_factory=Counter)


class Hang(BaseException):
    """No reader catches it."""


class Watch:
    """Tells what a reader does besides reading: programs that it starts, files that it makes or changes elsewhere.

    Python's own calls are seen as they are made. What compiled code writes (pyarrow's writers open files themselves) is
    seen afterwards, in the folder above and in the folders next to the reader's.
    """

    def __init__(self) -> None:
        self.allowed: Path | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.allowed is None:
            return
        if event in PROGRAMS and not (event == "subprocess.Popen" and list(args[1])[:4] == TRYING):
            self.seen.append(f"{event} {args!r:.200}")
        elif event == "open" and isinstance(args[2], int) and args[2] & WRITES:
            # A name in an open folder (base/folder.py) leads nowhere else.
            self._changed("open", args[0], bool(args[2] & os.O_NOFOLLOW))
        elif event in CHANGES:
            for path, opened in CHANGES[event]:
                self._changed(event, args[path], opened is not None and args[opened] != -1)

    def _changed(self, event: str, path: Any, in_open_folder: bool) -> None:
        if not isinstance(path, str | bytes | os.PathLike):  # a file that is open already
            return
        text = os.fsdecode(path)
        if in_open_folder and "/" not in text:
            return
        full = Path(os.path.realpath(os.path.dirname(text) or ".")) / os.path.basename(text)
        places = {full, Path(os.path.realpath(text))} if event == "open" else {full}
        own = (self.allowed, Path("/dev/null"), Path("/proc/self"))
        if not all(any(one.is_relative_to(place) for place in own if place) for one in places):
            self.seen.append(f"{event} {text!r}")

    def listed(self, folder: Path) -> dict[str, tuple[int, int]]:
        """All in the folder above `folder` and in those next to it, with its length and the time of its change."""
        found = {}
        for place in (folder.parent, *folder.parent.iterdir()):
            with contextlib.suppress(OSError):
                for entry in os.scandir(place) if place != folder and not place.is_symlink() else ():
                    if Path(entry) != folder:
                        facts = entry.stat(follow_symlinks=False)
                        found[entry.path] = (facts.st_size, facts.st_mtime_ns)
        return found

    @contextlib.contextmanager
    def within(self, folder: Path) -> Iterator[None]:
        """Watch a reader; `folder` is where it may write, temporary files too."""
        own, self.seen = folder.resolve(), []
        before = self.listed(own)
        self.allowed, tempfile.tempdir = own, str(own)
        try:
            yield
        finally:
            self.allowed = tempfile.tempdir = None
            after = self.listed(own)
            changed = {path for path in before | after if before.get(path) != after.get(path)}
            self.seen += [f"changes {path!r}" for path in sorted(changed)]


_watch: list[Watch] = []


def watch() -> Watch:
    """The only one of this process: audit hooks stay for good."""
    if not _watch:
        _watch.append(Watch())
    return _watch[0]


def resident(peak: bool = False) -> int:
    """Bytes of this process in memory, now or at most since `forget_peak`."""
    with open("/proc/self/status") as file:
        name = "VmHWM:" if peak else "VmRSS:"
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


def forget_peak() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def judged(read: Callable[[], object], folder: Path) -> tuple[str, str]:
    """What came of reading hostile files in a folder: `valid`, `refused` or `failed`, and what was said."""

    def ring(number: int, frame: object) -> None:
        raise Hang

    timers = {signal.ITIMER_PROF: (signal.SIGPROF, SECONDS), signal.ITIMER_REAL: (signal.SIGALRM, WAITED)}
    kept = {number: signal.signal(number, ring) for number, _ in timers.values()}
    forget_peak()
    before = resident()
    for timer, (_, seconds) in timers.items():
        signal.setitimer(timer, seconds)
    try:
        with (
            watch().within(folder),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            read()
        outcome, said = "valid", ""
    except UserError as error:
        said = str(error)
        outcome = "refused" if said and "\n" not in said and len(said) <= LONGEST else "failed"
    except Hang:
        outcome, said = "failed", f"took over {SECONDS} s, or waited {WAITED}"
    except (Exception, SystemExit, RecursionError):
        outcome, said = "failed", traceback.format_exc()
    finally:
        for timer, (number, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, kept[number])
    if (more := resident(peak=True) - before) > MEMORY:
        return "failed", f"took {more // 2**20} MiB more"
    if watch().seen:
        return "failed", "; ".join(watch().seen)
    return outcome, said


class Fuzzed:
    """A target with its valid files, in a folder that is made hostile and mended again for each case."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self.folder = target, folder
        folder.mkdir(parents=True)
        self.kinds = target.make(folder)
        self.valid = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        tried = [judged(lambda seed=seed: target.read(folder, random.Random(seed)), folder) for seed in range(3)]
        assert any(outcome == "valid" for outcome, _ in tried), f"{target.name}: its valid file is not: {tried}"
        self.mend()

    def case(self, seed: str) -> tuple[str, str]:
        """Make one input of a seed, and read it."""
        rng = random.Random(seed)
        name = rng.choice(list(self.kinds))
        path = self.folder / name
        if rng.random() < 0.01:
            self._no_file(rng, path)
        else:
            path.write_bytes(fuzz_mutations.mutated(rng, self.kinds[name], self.valid[Path(name)]))
        return judged(lambda: self.target.read(self.folder, rng), self.folder)

    def _no_file(self, rng: random.Random, path: Path) -> None:
        """Something else in the place of a file."""
        path.unlink()
        kind = rng.randrange(5)
        if kind == 0:
            path.mkdir()
        elif kind == 1:
            os.mkfifo(path)
        elif kind == 2:
            path.symlink_to("/dev/zero")
        elif kind == 3:
            path.symlink_to(path.name)

    def mend(self) -> None:
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink() and path.relative_to(self.folder) not in self._folders:
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
        for name, data in self.valid.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(data)

    @property
    def _folders(self) -> set[Path]:
        return {parent for name in self.valid for parent in name.parents}

    def keep(self, folder: Path, seed: str, said: str) -> None:
        """Save an input that failed."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.folder, folder, symlinks=True, ignore=_pipes)
        (folder / "SAID").write_text(f"{self.target.name} {seed}\n{said}\n", errors="replace")


def _pipes(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (Path(folder) / name).is_file() and not (Path(folder) / name).is_dir()]


def run(
    targets: Sequence[Target], inputs: int, seed: int, folder: Path, keep: Path | None = None, bar: bool = False
) -> dict[str, Outcome]:
    """So many inputs over all targets; the same ones for the same seed."""
    total = sum(target.share for target in targets)
    results: dict[str, Outcome] = {}
    with progress("fuzzing", inputs) if bar else contextlib.nullcontext(lambda count: None) as advance:
        for target in targets:
            outcome = results[target.name] = Outcome()
            fuzzed = Fuzzed(target, folder / target.name)
            count = max(1, round(inputs * target.share / total))
            for number in range(count):
                began = time.perf_counter()
                text = f"{seed}/{target.name}/{number}"
                result, said = fuzzed.case(text)
                if result == "failed":
                    outcome.failures.append(f"{text}: {said}")
                    if keep:
                        fuzzed.keep(keep / f"{target.name}-{number}", text, said)
                elif result == "valid":
                    outcome.valid += 1
                else:
                    outcome.refused += 1
                    outcome.messages[said.replace(str(folder), "")[-60:]] += 1
                fuzzed.mend()
                outcome.seconds += time.perf_counter() - began
                advance(1)
    return results


def table(result: dict[str, Outcome]) -> Table:
    shown = Table("reader", "inputs", "valid", "refused", "failures", "ms an input")
    sums = [0, 0, 0, 0]
    for name, one in result.items():
        counts = [one.valid + one.refused + len(one.failures), one.valid, one.refused, len(one.failures)]
        sums = [a + b for a, b in zip(sums, counts, strict=True)]
        shown.add_row(name, *map(str, counts), f"{1000 * one.seconds / max(counts[0], 1):.1f}")
    shown.add_row("all", *map(str, sums), "")
    return shown


def main() -> int:
    from fuzz_targets import TARGETS

    parser = argparse.ArgumentParser(description="fuzz every file that specbench reads")
    parser.add_argument("--inputs", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    names = [target.name for target in TARGETS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="a reader; may be repeated")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="folder for inputs that failed")
    parser.add_argument("--out", type=Path, help="a JSON file for the counts")
    given = parser.parse_args()
    faulthandler.enable()
    chosen = [target for target in TARGETS if not given.only or target.name in given.only]
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(chosen, given.inputs, given.seed, Path(folder), given.keep, bar=True)
    console = Console()
    console.print(table(outcome))
    if given.out:
        counts = {name: [one.valid, one.refused, len(one.failures)] for name, one in outcome.items()}
        totals = dict(zip(("valid", "refused", "failures"), map(sum, zip(*counts.values(), strict=True)), strict=True))
        facts = {"seed": given.seed, "inputs": sum(totals.values()), **totals, "readers": counts}
        given.out.write_text(json.dumps(facts | {"environment": machine()}, indent=1) + "\n")
    for name, one in outcome.items():
        for text in one.failures[:5]:
            console.print(f"{name}: {text[:80]} … {text[-600:]}", markup=False, highlight=False, soft_wrap=True)
    return int(any(one.failures for one in outcome.values()))


def machine() -> dict[str, Any]:
    """Where this runs, and with which versions."""
    import torch

    from specbench.base.environment import describe

    return {key: value for key, value in describe(torch.device("cpu")).items() if key not in PASSING}


def assert_refused(read, folder: Path, words: str) -> None:
    """Reading ends in a line that says why."""
    outcome, said = judged(read, folder)
    assert outcome == "refused" and words in said, said


if __name__ == "__main__":
    sys.exit(main())
