"""How long large runs take to be imported, shown and reported, and how much memory: part of `make bench`."""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

from specbench.base.console import console

WORDS = ("the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not")
CATEGORIES = ("writing", "math", "translation", "summarization", "qa", "math_reasoning", "rag")
METHODS = ["vanilla", "csd", "pld", "sps"]


def make(path: Path, requests: int) -> None:
    """An answer file in Spec-Bench's form, with some 90 rounds a request."""
    draw = random.Random(0)
    with path.open("w") as file:
        for number in range(requests):
            lengths = [draw.choice((1, 1, 2, 2, 3, 3, 4, 5, 6)) for _ in range(draw.randint(80, 100))]
            choice = {"turns": [" ".join(draw.choices(WORDS, k=180))], "new_tokens": [sum(lengths)]}
            choice |= {"wall_time": [len(lengths) * 0.025 * draw.uniform(0.9, 1.1)], "accept_lengths": lengths}
            category = CATEGORIES[number % len(CATEGORIES)]
            answer = {"question_id": number, "category": category, "model_id": "eagle", "choices": [choice]}
            file.write(json.dumps(answer) + "\n")


def record(folder: Path, rounds: int) -> None:
    """A run of four tasks and methods as the main loop records it, in groups of rows as the recorder writes them.

    In a process of its own: what this one has imported would count as memory of the commands that it starts.
    """
    import pyarrow.parquet as pq
    from made_runs import large

    from specbench.results.records import GROUP, WRITING

    large(folder, [f"pocket_{name}" for name in ("gsm8k", "math500", "mmlu", "ifeval")], METHODS, rounds // 3456, 205)
    pq.write_table(pq.read_table(folder / "rounds.parquet"), folder / "rounds.parquet", row_group_size=GROUP, **WRITING)


def measure(what: str, command: list[str], folder: Path, most: tuple[float, int]) -> None:
    """Print what a command takes next to what it may take. Ends the program if it fails."""
    began = time.perf_counter()
    done = subprocess.Popen([sys.executable, "-m", "specbench.cli", *command], cwd=folder, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(done.pid, 0)
    seconds, megabytes = time.perf_counter() - began, used.ru_maxrss / 1024
    console.print(f"{what}: {seconds:.1f} s, {megabytes:.0f} MB (aim: {most[0]:g} s, {most[1]} MB)")
    if status:
        sys.exit(f"{command[0]} failed")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=100_000, help="that are imported; the aims are for 100,000")
    options.add_argument("--rounds", type=int, default=1_400_000, help="of a recorded run; the aims are for 1,400,000")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make(folder / "answers.jsonl", chosen.requests)
        imported = f"of {chosen.requests:,} imported requests"
        measure(f"import {imported}", ["import", "spec-bench", "answers.jsonl", "--out", "run"], folder, (10, 1000))
        measure(f"show {imported}", ["show", "run"], folder, (3, 1000))
        measure(f"report {imported}", ["report", "run", "--out", "page.html"], folder, (10, 1000))
        recording = get_context("spawn").Process(target=record, args=(folder / "recorded", chosen.rounds))
        recording.start()
        recording.join()
        recorded = f"of {chosen.rounds:,} recorded rounds"
        measure(f"show {recorded}", ["show", "recorded"], folder, (2.25, 500))
        measure(f"report {recorded}", ["report", "recorded", "--out", "page.html"], folder, (6.5, 700))


if __name__ == "__main__":
    main()
