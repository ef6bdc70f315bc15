"""How long large imports take to be read, shown and reported, and how much memory: part of `make bench`."""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from specbench.base.console import console

WORDS = ("the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not")
CATEGORIES = ("writing", "math", "translation", "summarization", "qa", "math_reasoning", "rag")
MOST = {"import": (10, 1000), "show": (3, 1000), "report": (10, 1000)}  # seconds and MB for 9 million rounds on 2 cores


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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=100_000)
    requests = options.parse_args().requests
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make(folder / "answers.jsonl", requests)
        commands = {
            "import": ["import", "spec-bench", "answers.jsonl", "--out", "run"],
            "show": ["show", "run"],
            "report": ["report", "run", "--out", "page.html"],
        }
        for name, command in commands.items():
            began = time.perf_counter()
            done = subprocess.Popen(
                [sys.executable, "-m", "specbench.cli", *command], cwd=folder, stdout=subprocess.DEVNULL
            )
            _, status, used = os.wait4(done.pid, 0)
            seconds, megabytes = time.perf_counter() - began, used.ru_maxrss / 1024
            most = MOST[name]
            console.print(
                f"{name} of {requests:,} requests: {seconds:.1f} s, {megabytes:.0f} MB "
                f"(aim for 100,000: {most[0]} s, {most[1]} MB)"
            )
            if status:
                sys.exit(f"{name} failed")


if __name__ == "__main__":
    main()
