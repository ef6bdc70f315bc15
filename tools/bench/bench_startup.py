"""How long commands take to start: seconds of processor time (the least of a few), next to what they may take.

Reads a run of the bundled pair that it makes first. Run by `make bench`; exits with 1 if a command takes longer, and
stops where one ends with another exit code than it should.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIMES = 3
RUN = ["run", "--method", "csd", "--suite", "math", "--limit", "1"]
MOST = {  # seconds of processor time, and the exit code
    "--help": (0.7, 0),
    "shw run": (0.7, 2),
    "run --method cds --suite math": (0.7, 2),
    "run --method csd --suite mth": (0.7, 2),
    "run --method csd --suite math --pair pockt": (0.7, 2),
    "analyze rejections run --method cds": (1.5, 2),
    "analyze counterfactual run --method cds": (1.5, 2),
    "trace run --task gsm --doc 0": (1.5, 2),
    "doctor --suite mth": (0.7, 2),
    "list": (1.5, 0),
    "show run": (1.5, 0),
    "compare run": (1.5, 0),
    "plot speed-accuracy run": (1.5, 0),
    "plot depth run": (1.5, 0),
    "run --resume run": (1.5, 0),
}
FIRST_DOCUMENT = 6.0  # seconds from the start of `run` to its first document


def call(words: list[str], folder: Path, code: int = 0) -> float:
    """Seconds of processor time of a command, which must end with `code`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = [sys.executable, "-m", "specbench.cli", *words]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True)
    if done.returncode != code:
        raise SystemExit(f"specbench {' '.join(words)}: exit code {done.returncode}, not {code}: {done.stderr[-500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_document(folder: Path) -> float:
    """Seconds until a run has its manifest, which is written when all is loaded and the first document begins."""
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "specbench.cli", *RUN], cwd=folder, stdout=subprocess.DEVNULL)
    while child.poll() is None and not list(folder.glob("runs/*/manifest.json")):
        time.sleep(0.01)
    seconds = time.perf_counter() - began
    if child.wait():
        raise SystemExit(f"specbench {' '.join(RUN)}: exit code {child.returncode}")
    for path in sorted(folder.glob("runs/**/*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return seconds


def main() -> int:
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    late = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call([*RUN, "--out", "run"], folder)  # also warms the disk's cache
        rows = {
            command: (min(call(command.split(), folder, code) for _ in range(TIMES)), most)
            for command, (most, code) in MOST.items()
        }
        rows["run, until its first document"] = (min(first_document(folder) for _ in range(TIMES)), FIRST_DOCUMENT)
    print(f"{'seconds':>8} {'at most':>8}")
    for what, (seconds, most) in rows.items():
        print(f"{seconds:8.2f} {most:8.2f}  {what}")
        late += [what] * (seconds > most)
    return int(bool(late))


if __name__ == "__main__":
    sys.exit(main())
