"""Mutation check: every small change of meaning in list.txt must make a named test fail.

    make mutants
    python tests/mutants/main.py --only stats.py --jobs 2

A line of list.txt is a file, the text in it, the text that takes its place, and what pytest is asked to run, with
` :: ` between them; `\\n` in a text is the end of a line. Tests that are marked long run too. `hangs :: ` in front says
that a test which runs out of time counts as found too: nothing shorter can see that a loop no longer ends.

Each worker has a copy of the tree in a temporary folder and changes one text at a time there. Results are kept in a
file, so that a stopped check goes on; a mutation runs again when its line, its file or its tests change.

Exit code: 0 if every mutation is found, 1 if one survives or runs out of time, 2 if a line of the list is wrong (its
text is not there exactly once, pytest finds no such test, the test fails without a mutation too, or it fails by a
NameError or the like) or if `--only` selects none.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import queue
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("list.txt")
WARM = Path(__file__).with_name("warm.py")
BETWEEN = " :: "
FOUND, SURVIVED, TIMED_OUT, WRONG = "found", "survived", "timed out", "wrong"
# What a test shows that met a mistake of the list, and no change of meaning.
MISTAKE = re.compile(r"^E\s+(?:NameError|SyntaxError|IndentationError|ImportError|ModuleNotFoundError)\b.*", re.M)
PASSED, FAILED = 0, 1  # exit codes of pytest; the others say that no test could be judged


@dataclass(frozen=True)
class Mutation:
    file: str
    old: str
    new: str
    tests: tuple[str, ...]  # arguments of pytest
    hangs: bool

    @property
    def name(self) -> str:
        return f"{self.file}: {self.old.strip()!r} -> {self.new.strip()!r}"

    def problem(self) -> str:
        """Why the list's line cannot be used; empty if it can."""
        path = ROOT / self.file
        count = path.read_text().count(self.old) if path.is_file() else -1
        if count != 1:
            return "there is no such file" if count < 0 else f"its text is there {count} times, not once"
        missing = [
            test for test in self.tests if not test.startswith("-") and "/" in test and not named(test).is_file()
        ]
        return f"there is no {missing[0]}" if missing else ""

    def key(self) -> str:
        """Changes with the line, the file and the tests."""
        parts = [repr(self), (ROOT / self.file).read_text()]
        parts += [named(test).read_text() for test in self.tests if named(test).is_file()]
        return digest(parts)


def digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def named(argument: str) -> Path:
    """The file of a test's name."""
    return ROOT / argument.partition("::")[0]


def read_list(path: Path = LIST) -> list[Mutation]:
    mutations = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        hangs = line.startswith("hangs" + BETWEEN)
        fields = line.split(BETWEEN)[hangs:]
        if len(fields) != 4:
            raise SystemExit(f"{path.name}, line {number}: {len(fields)} fields, not 4")
        file, old, new, tests = fields
        old, new = (text.replace(r"\n", "\n") for text in (old, new))
        mutations.append(Mutation(file, old, new, tuple(shlex.split(tests)), hangs))
    return mutations


class Workshop:
    """Copies of the tree, one for each worker, and the results so far."""

    def __init__(self, folder: Path, jobs: int, results: Path, limit: float) -> None:
        self.limit, self.path = limit, results
        self.results: dict[str, dict] = json.loads(results.read_text()) if results.is_file() else {}
        self.lock = threading.Lock()
        self.free: queue.Queue[Path] = queue.Queue()
        tracked = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.split("\0")
        files = [name for name in tracked if name and (ROOT / name).is_file()]
        self.tree = digest([(ROOT / name).read_text() for name in sorted(files) if name.endswith(".py")])
        for number in range(jobs):
            for name in files:
                (folder / str(number) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / str(number) / name)
            self.free.put(folder / str(number))
        command, environment = [sys.executable, str(WARM)], {**os.environ, "OMP_NUM_THREADS": "1"}
        self.warm = {
            folder / str(number): subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for number in range(jobs)
        }

    def judge(self, mutation: Mutation) -> dict:
        """What became of a mutation."""
        key = mutation.key()
        if key not in self.results:
            tree = self.free.get()
            try:
                found = self.untouched(tree, mutation.tests) or self.mutated(tree, mutation)
            finally:
                self.free.put(tree)
            self.keep(key, {"mutation": mutation.name, **found})
        return self.results[key]

    def keep(self, key: str, result: dict) -> None:
        with self.lock:
            self.results[key] = result
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(self.results, indent=1))
            new.replace(self.path)

    def untouched(self, tree: Path, tests: tuple[str, ...]) -> dict | None:
        """What is wrong with tests on the tree as it is; None: nothing."""
        key = digest([self.tree, *tests])
        if key not in self.results:
            code, seconds, last = self.pytest(tree, tests)
            self.keep(key, {"tests": shlex.join(tests), "code": code, "seconds": seconds, "last": last})
        one = self.results[key]
        if one["code"] == PASSED:
            return None
        return {"outcome": WRONG, "seconds": one["seconds"], "by": f"without the mutation: {one['last']}"}

    def mutated(self, tree: Path, mutation: Mutation) -> dict:
        path = tree / mutation.file
        text = path.read_text()
        try:
            write(path, text.replace(mutation.old, mutation.new))
            code, seconds, last = self.pytest(tree, mutation.tests)
        finally:
            write(path, text)
        if code is None:
            outcome = FOUND if mutation.hangs else TIMED_OUT
        else:
            outcome = {PASSED: SURVIVED, FAILED: FOUND}.get(code, WRONG)
        if MISTAKE.match(last):
            outcome = WRONG
        return {"outcome": outcome, "seconds": seconds, "by": last}

    def pytest(self, tree: Path, tests: tuple[str, ...]) -> tuple[int | None, float, str]:
        """Exit code (None: out of time), seconds, and the last line that tells of a failure."""
        began = time.monotonic()
        process = self.warm[tree]
        assert process.stdin and process.stdout
        asked = {"tree": str(tree), "arguments": tests, "limit": self.limit}
        print(json.dumps(asked), file=process.stdin, flush=True)
        code, said = json.loads(process.stdout.readline())
        lines = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))] or said.splitlines()
        lines = MISTAKE.findall(said) or lines
        return code, round(time.monotonic() - began, 1), (lines or [""])[-1][:200]

    def close(self) -> None:
        for process in self.warm.values():
            process.terminate()
            process.wait()


def write(path: Path, text: str) -> None:
    path.write_text(text)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)  # a second may hold two writes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="mutations whose file, texts or tests hold this text")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2))
    parser.add_argument("--limit", type=float, default=600, help="seconds for the tests of a mutation")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.json")
    parser.add_argument("--list", type=Path, default=LIST, help="another list")
    options = parser.parse_args()
    chosen = [one for one in read_list(options.list) if options.only in BETWEEN.join((one.name, *one.tests))]
    if not chosen:
        print(f"no mutation has {options.only!r} in its file, its texts or its tests")
        return 2
    if problems := [f"{one.name}: {problem}" for one in chosen if (problem := one.problem())]:
        print("\n".join(problems))
        return 2
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        workshop = Workshop(Path(folder), options.jobs, options.results, options.limit)
        with ThreadPoolExecutor(options.jobs) as pool, contextlib.closing(workshop):
            results = []
            for number, result in enumerate(pool.map(workshop.judge, chosen), 1):
                results.append(result)
                place = f"{number}/{len(chosen)}"
                print(f"{place} {result['outcome']}: {result['mutation']} ({result['seconds']} s)", flush=True)
                if result["outcome"] != FOUND:
                    print(f"  {result['by']}", flush=True)
    counts = Counter(result["outcome"] for result in results)
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in (FOUND, SURVIVED, TIMED_OUT, WRONG)))
    return 2 if counts[WRONG] else int(counts[FOUND] < len(results))


if __name__ == "__main__":
    sys.exit(main())
