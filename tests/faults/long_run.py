"""A run of very many documents: memory, open files and the time of a document stay as they are, and it goes on fast."""

import json
import os
import random
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from faults import place
from faults.bench import Bench, Fault, Outcome, expect, last_words
from faults.child import PATIENCE, Command
from specbench.base.folder import Folder
from specbench.results import records

SETTLED = 1000  # documents after which nothing may grow any more
MORE_MEMORY = 50e6  # bytes
MORE_HANDLES = 4
MOST_FILES = 1000
SLOWER = 1.5  # the last fifth over the second: other work on the machine is in it
RESUMED = 5.0 * PATIENCE  # seconds to the first new document
METHODS = ("csd", "vanilla")
LONGEST = 900 * PATIENCE  # seconds


@dataclass(frozen=True)
class Look:
    """The process at a moment."""

    seconds: float
    documents: int
    memory: int  # bytes, resident
    handles: int
    files: int  # of the run


def faults(bench: Bench) -> list[Fault]:
    count = bench.count(20_000, 400)
    return [Fault(f"{count:,} documents in one run", [partial(long_run, bench, count)])]


def long_run(bench: Bench, count: int, work: Path) -> Outcome:
    """Stopped when nineteen of twenty are done, and gone on with to the end."""
    folder, settled = work / "run", min(SETTLED, count // 2)
    command = Command(words(bench, work, count), work / "said", fresh=True)
    looks = watch(command, folder, count * 19 // 20)
    command.send(signal.SIGTERM)
    stopped = command.end()
    before = documents(folder)
    began = time.monotonic()
    again = Command(["run", "--resume", str(folder)], work / "again", fresh=True)
    again.until(lambda: documents(folder) > before)
    resumed = time.monotonic() - began
    code = again.end(LONGEST)
    steady = [look for look in looks if look.documents >= settled]
    if not steady or code:
        return Outcome(1, 0, 0, [last_words(command.said() + again.said())])
    fifth = (looks[-1].documents - settled) // 5
    growth = max(look.memory for look in steady) - steady[0].memory
    slower = pace(looks, looks[-1].documents - fifth, looks[-1].documents) / pace(looks, settled, settled + fifth)
    handles = max(look.handles for look in steady) - steady[0].handles
    files = max(look.files for look in looks)
    facts = {
        "documents": count,
        "bytes_more": growth,
        "slower": round(slower, 3),
        "handles_more": handles,
        "files": files,
        "resumed_seconds": round(resumed, 2),
        "milliseconds": round(1000 * pace(looks, settled, looks[-1].documents), 2),
    }
    (work.parent / "long-run.json").write_text(json.dumps(facts))
    holds = {
        f"the first run stopped when asked ({stopped})": stopped == 130,
        f"memory is flat ({growth / 1e6:+.0f} MB)": growth < MORE_MEMORY,
        f"a document takes as long as ever (× {slower:.2f})": slower < SLOWER or bench.short,
        f"open files are as many ({handles:+d})": handles <= MORE_HANDLES,
        f"the run is in a sane number of files ({files})": files < MOST_FILES,
        f"it goes on in {RESUMED:g} s ({resumed:.1f} s)": resumed < RESUMED or bench.short,
        "the end is a plain one": place.plain_end(folder),
    }
    print(f"long run: {facts}")
    return expect(holds, "long run", missing(folder, count))


def words(bench: Bench, work: Path, count: int) -> list[str]:
    """A run command over so many made documents of a few tokens each."""
    rng, data = random.Random(bench.seed), work / "data"
    data.mkdir()
    with open(data / "gsm8k_test.jsonl", "w") as file:
        for number in range(count):
            a, b = rng.randrange(2, 1000), rng.randrange(2, 1000)
            question = f"Document {number}: Ann has {a} cups and buys {b} more. How many cups has she now?"
            file.write(json.dumps({"question": question, "answer": f"{a} + {b} = {a + b}\n#### {a + b}"}) + "\n")
    suite = {"description": "many", "tasks": [{"task": "gsm8k", "fewshot": 0, "max_new_tokens": 6}]}
    (work / "many.yaml").write_text(yaml.safe_dump(suite))
    given = ["--suite", work / "many.yaml", "--data-dir", data, "--method", "csd", "--runtime", "static"]
    return ["run", "--pair", place.pair(bench.place), "--device", "cpu", "--out", *map(str, (work / "run", *given))]


def watch(command: Command, folder: Path, until: int) -> list[Look]:
    """Look at a command once a second until so many documents are done, or it ends."""
    looks: list[Look] = []
    began = time.monotonic()
    while command.alive() and time.monotonic() - began < LONGEST:
        if done := documents(folder):
            looks.append(look(command.pid, folder, done, time.monotonic() - began))
        if done >= until:
            break
        time.sleep(1)
    return looks


def look(pid: int, folder: Path, done: int, seconds: float) -> Look:
    memory = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    files = sum(len(names) for _, _, names in os.walk(folder))
    return Look(seconds, done, memory, len(os.listdir(f"/proc/{pid}/fd")), files)


def documents(folder: Path) -> int:
    """How many are on the disk, by the names of their files."""
    try:
        with Folder.at(folder) as place:
            parts = records.parts(place)
    except OSError:  # there is no run yet, or its parts are being merged
        return 0
    return parts[-1].last + 1 if parts else 0


def pace(looks: list[Look], first: int, last: int) -> float:
    """Seconds a document between two numbers of documents."""
    inside = [one for one in looks if first <= one.documents <= last]
    one, other = inside[0], inside[-1]
    return (other.seconds - one.seconds) / max(1, other.documents - one.documents)


def missing(folder: Path, count: int) -> int:
    """How many samples are not there once."""
    table = pq.read_table(folder / "samples.parquet", columns=["doc_id", "method", "warmup"])
    rows = [(row["doc_id"], row["method"]) for row in table.to_pylist() if not row["warmup"]]
    wanted = {(number, method) for number in range(count) for method in METHODS}
    return len(wanted - set(rows)) + len(rows) - len(set(rows))
