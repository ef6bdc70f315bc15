"""A method that fails at one document, or in one of its steps: its cell fails, and nothing else."""

from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from faults import place
from faults.bench import BLOCK, Bench, Fault, Outcome, expect, last_words
from faults.child import Command
from specbench.results import records

ERRORS = ("OutOfMemoryError", "MemoryError", "RuntimeError", "AssertionError")
STEPS = ("rounds", "reset", "state", "restore")
TEXT = 3  # of the method: the warm-up is its first


def faults(bench: Bench) -> list[Fault]:
    forwards = list(product(("sps", "csd", "bandit", "swift"), ERRORS[:2], (0, 4)))
    forwards = forwards[3:4] if bench.short else forwards[::2]
    steps = list(product(("csd", "bandit", "swift"), STEPS, ERRORS[1:]))
    steps = steps[13:14] if bench.short else steps[::3]
    return [
        Fault("out of memory in a forward", [partial(in_a_forward, bench, *forward) for forward in forwards]),
        Fault("an exception in a method's step", [partial(in_a_step, bench, *step) for step in steps]),
    ]


def in_a_forward(bench: Bench, method: str, error: str, after: int, work: Path) -> Outcome:
    given = {"method": method, "text": TEXT, "after": after, "error": error}
    what = f"{error} in {method}, forward {after + 1} of its text {TEXT}"
    folder = work / "run"
    command = Command(bench.words(folder), work / "said", {"block": BLOCK, "forward_fails": given})
    return cell_failed(bench, folder, command, method, error, what, texts=1)


def in_a_step(bench: Bench, method: str, step: str, error: str, work: Path) -> Outcome:
    """`restore` is met by a run that goes on; what fails there, or in `reset`, fails until the next `reset`."""
    given: dict[str, Any] = {"method": method, "step": step, "error": error, "calls": [2]}
    what, folder = f"{error} in {step} of {method}", work / "run"
    faults = {"block": BLOCK, "fail": given}
    if step != "restore":
        command = Command(bench.words(folder), work / "said", faults)
    else:
        given["calls"] = [1]
        command = Command(bench.words(folder), work / "said-first", {"block": BLOCK, "slow": 0.3})
        command.until(lambda: len(place.kept(folder)) > 10)
        command.send(15)
        command.end()
        command = Command(["run", "--resume", str(folder)], work / "said", faults)
    return cell_failed(bench, folder, command, method, error, what, texts=None)


def cell_failed(
    bench: Bench, folder: Path, command: Command, method: str, error: str, what: str, texts: int | None
) -> Outcome:
    """Whether `method` has failed rows with a traceback (`texts` of them, or some), and all others are as ever."""
    code, said = command.end(), command.said()
    try:
        rows = records.read_rows(folder, "samples").to_pylist()
    except (OSError, ValueError) as unread:
        return Outcome(1, 0, 0, [f"{what}: {unread}; exit code {code}: {last_words(said)}"])
    timed = [row for row in rows if not row["warmup"]]
    failed = [row for row in timed if row["finish"] == "error"]
    broken = failed or [row for row in rows if row["finish"] == "error"]
    lost = others_lost(bench, folder, method)
    keys = {(row["task"], row["doc_id"], row["method"]) for row in timed}
    there = {(row[1], row[2], row[3]) for row in bench.facts[0.0]["samples"]}
    return expect(
        {
            f"exit code 3, but {code}: {last_words(said)}": code == (3 if failed else 0),
            "there is a failed row": broken,
            f"{texts} timed rows failed, but {len(failed)}": texts is None or len(failed) == texts,
            "only this method failed": {row["method"] for row in broken} <= {method},
            "the error's traceback": all("Traceback" in row["error"] and error in row["error"] for row in broken),
            "no text where it failed": all(row["text"] is None for row in broken),
            "the table counts them": not failed or f"failed samples: {len(failed)}" in " ".join(said.split()),
            "every cell has its row": len(keys) == len(there) == len(timed),
            "it ended as runs do": place.plain_end(folder),
        },
        what,
        lost,
    )


def others_lost(bench: Bench, folder: Path, method: str) -> int:
    """Rows of the other methods that are not as in the uninterrupted run."""
    wanted, info = bench.facts[0.0], place.facts(folder)
    count = 0
    for name, at in (("samples", 3), ("rounds", 3)):
        one, other = (Counter(row for row in of[name] if row[at] != repr(method)) for of in (wanted, info))
        count += sum((one - other).values()) + sum((other - one).values())
    return count
