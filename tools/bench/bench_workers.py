"""Documents an hour of two workers against one, on two idle cores: `python tools/bench/bench_workers.py`.

A round is one run of each, in turn the one and the other first; each worker has one thread. A run's time has all in it:
the start of Python, the loading of the models, decoding, joining and scoring. Prints each round with how long shards
were decoded, and the geometric mean of the ratios with its interval by Student's t over rounds. `--rounds N`,
`--documents N` (of each task of `pocket`).
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats

from specbench.base.environment import origin
from specbench.engine.clock import now
from specbench.results.stored import StoredRun

ROUNDS = 3
DOCUMENTS = 60
GOAL = 1.8
SHARE = 0.95


class Timed(NamedTuple):
    """One run: its documents, its seconds, and those from the first shard's begin to the last one's end."""

    documents: int
    seconds: float
    decoding: float

    @property
    def rate(self) -> float:
        """Documents an hour."""
        return 3600 * self.documents / self.seconds

    def __str__(self) -> str:
        return f"{self.rate:,.0f} ({self.seconds:.1f} s, of these {self.decoding:.1f} s in shards)"


def timed(workers: int, documents: int) -> Timed:
    """A run of sps on the bundled pair, without times of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["run", "--method", "sps", "--suite", "pocket", "--limit", documents, "--untimed", "--device", "cpu"]
        command = [sys.executable, "-m", "specbench.cli", *map(str, [*words, "--workers", workers, "--out", out])]
        began = now()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
        seconds = now() - began
        first = min(path.stat().st_mtime for path in out.glob("shards/*/manifest.json"))
        last = max(path.stat().st_mtime for path in out.glob("shards/*/samples.parquet"))
        return Timed(StoredRun(out).progress[0], seconds, last - first)


def mean(ratios: list[float]) -> str:
    """The geometric mean of ratios, with its interval if there are several."""
    logs = np.log(ratios)
    if len(ratios) < 2:
        return f"{math.exp(logs.mean()):.3f}"
    half = stats.t.ppf((1 + SHARE) / 2, len(ratios) - 1) * logs.std(ddof=1) / math.sqrt(len(ratios))
    return f"{math.exp(logs.mean()):.3f} [{math.exp(logs.mean() - half):.3f}, {math.exp(logs.mean() + half):.3f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    given = parser.parse_args()
    if (os.cpu_count() or 1) < 2:
        print("one core: nothing to measure")
        return 0
    where = f"{origin(torch.device('cpu'))['device']}, load {os.getloadavg()[0]:.2f} before"
    print(f"{given.documents} documents of each task of pocket; {where}", flush=True)
    ratios, in_shards = [], []
    for number in range(given.rounds):
        order = (1, 2) if number % 2 else (2, 1)
        runs = {workers: timed(workers, given.documents) for workers in order}
        ratios.append(runs[2].rate / runs[1].rate)
        in_shards.append(runs[1].decoding / runs[2].decoding)
        line = f"documents an hour of one worker {runs[1]}, of two {runs[2]}"
        print(f"round {number + 1}: {line}: × {ratios[-1]:.3f}, in shards × {in_shards[-1]:.3f}", flush=True)
    print(f"two workers decode {mean(ratios)} times the documents of one, in shards {mean(in_shards)} times")
    print(f"{given.rounds} rounds; at least {GOAL:g}")
    return int(math.exp(np.log(ratios).mean()) < GOAL)


if __name__ == "__main__":
    sys.exit(main())
