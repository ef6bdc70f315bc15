"""Documents an hour of two workers against one, on two idle cores: `python tests/bench_workers.py`.

A round is one run of each, in turn the one and the other first; each worker has one thread, and a run's time has the
start of Python, the loading of the models, joining and scoring in it. Prints each round and the geometric mean of
the ratios with its interval by Student's t over rounds. `--rounds N`, `--documents N` (of each task of `pocket`).
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

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


def documents_an_hour(workers: int, documents: int) -> float:
    """Of one run of sps on the bundled pair, without times."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["run", "--method", "sps", "--suite", "pocket", "--limit", documents, "--untimed", "--device", "cpu"]
        command = [sys.executable, "-m", "specbench.cli", *map(str, [*words, "--workers", workers, "--out", out])]
        began = now()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return 3600 * StoredRun(out).progress[0] / (now() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    given = parser.parse_args()
    if (os.cpu_count() or 1) < 2:
        print("one core: nothing to measure")
        return 0
    where = f"{origin(torch.device('cpu'))['device']}, load {os.getloadavg()[0]:.2f} before"
    print(f"{given.documents} documents of each task of pocket; {where}")
    ratios = []
    for number in range(given.rounds):
        order = (1, 2) if number % 2 else (2, 1)
        rates = {workers: documents_an_hour(workers, given.documents) for workers in order}
        ratios.append(rates[2] / rates[1])
        told = f"{rates[1]:,.0f} and {rates[2]:,.0f} documents an hour, × {ratios[-1]:.3f}"
        print(f"round {number + 1}: {told}", flush=True)
    logs = np.log(ratios)
    told = f"two workers decode {math.exp(logs.mean()):.3f} times the documents of one"
    if len(ratios) > 1:
        half = stats.t.ppf((1 + SHARE) / 2, len(ratios) - 1) * logs.std(ddof=1) / math.sqrt(len(ratios))
        told += f" [{math.exp(logs.mean() - half):.3f}, {math.exp(logs.mean() + half):.3f}]"
    print(f"{told}, {len(ratios)} rounds; at least {GOAL:g}")
    return int(math.exp(logs.mean()) < GOAL)


if __name__ == "__main__":
    sys.exit(main())
