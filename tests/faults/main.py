"""Everything that may go wrong, tried on the command itself: python tests/faults/main.py, over 30 minutes.

Prints what was tried, how often a run recovered, and how many rows were lost. Exit code 1 if any was, if a run did not
recover, or if a fault was never tried.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent.parent)]  # not this folder, whose names others have too
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "80"}
SUPPORT = str(HERE.parent / "support")
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], SUPPORT])  # for the fork server, which is told no other way
os.environ["PYTHONWARNINGS"] = "ignore::UserWarning:multiprocessing.resource_tracker"  # of children that were killed

# ruff: noqa: E402 (the environment of all commands comes first)
import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from faults import clocks, clusters, failing, folders, kill, logits, long_run, power, shards, space, stop, workers
from faults.bench import Bench, Fault, Outcome
from faults.child import PATIENCE
from specbench.base.environment import describe

KINDS = {
    "long": long_run.faults,  # first: it takes as long as half of the others
    "kill": kill.faults,
    "power": power.faults,
    "space": space.faults,
    "stop": stop.faults,
    "failing": failing.faults,
    "logits": logits.faults,
    "folders": folders.faults,
    "shards": shards.faults,
    "workers": workers.faults,
    "ray": workers.ray_faults,
    "clocks": clocks.faults,
}
OWN_RUNS = {"workers", "ray"}  # they make their own uninterrupted runs
WORKERS = 2
OWN_MOUNTS = "SPECBENCH_FAULTS_MOUNTS"  # set in a process that may mount a disk of its own


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=KINDS, help="these kinds of faults; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a minute's part of everything")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    parser.add_argument("--add", action="store_true", help="with --only: keep the other faults of the file")
    parser.add_argument("--keep", type=Path, help="work in this new folder and leave it there")
    given = parser.parse_args()
    if OWN_MOUNTS not in os.environ:
        within_mounts()
    root = given.keep or Path(tempfile.mkdtemp(prefix="specbench-faults-"))
    os.environ["SPECBENCH_CACHE"] = str(root / "cache")
    began = time.monotonic()
    try:
        bench = Bench(root.resolve(), given.seed, given.short, os.environ[OWN_MOUNTS] == "yes")
        result = carry_out(bench, given.only or list(KINDS))
    finally:
        clusters.end()
        if not given.keep:
            unmounted(root)
            shutil.rmtree(root, ignore_errors=True)
    seconds = time.monotonic() - began
    report(result, seconds, given.seed)
    if given.out:
        facts = {"seed": given.seed, "short": given.short, "seconds": round(seconds), "patience": PATIENCE}
        facts["faults"] = result
        facts["environment"] = describe(torch.device("cpu"))
        if given.add:
            facts = added(json.loads(given.out.read_text()), facts)
        given.out.write_text(json.dumps(facts, default=vars, indent=1) + "\n")
    untried = [name for name, one in result.items() if not (one.tried or one.skipped or given.short)]
    if untried:
        print(f"never tried: {', '.join(untried)}")
    return int(bool(untried) or any(one.lost or one.recovered < one.tried for one in result.values()))


def added(before: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    """Figures with those of faults that were tried later; `added` says of these when and where."""
    faults = before["faults"] | {name: one for name, one in info["faults"].items() if one.tried or one.skipped}
    facts = ("seed", "short", "seconds", "patience", "environment")
    later = {key: info[key] for key in facts} | {"faults": list(info["faults"])}
    return before | {"faults": faults, "added": [*before.get("added", []), later]}


def within_mounts() -> None:
    """Begin again as a process whose mounts nobody else sees, if this system lets us; else without small disks."""
    ways = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])
    for way in ways if os.geteuid() == 0 else ways[1:]:
        probe = [*way, "sh", "-c", "mount -t tmpfs none /mnt"]
        if shutil.which(way[0]) and subprocess.run(probe, capture_output=True).returncode == 0:
            os.environ[OWN_MOUNTS] = "yes"
            os.execvp(way[0], [*way, sys.executable, *sys.argv])
    os.environ[OWN_MOUNTS] = "no"


def carry_out(bench: Bench, kinds: Sequence[str]) -> dict[str, Outcome]:
    """All tries of these kinds, two at a time; what came of each fault, by its name."""
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, width=80)) as bar, ThreadPoolExecutor(WORKERS) as pool:
        task = bar.add_task("uninterrupted runs", total=None)
        bench.prepare(bool({*kinds} - OWN_RUNS))
        results: list[Fault] = [fault for kind in kinds for fault in KINDS[kind](bench)]
        bar.update(task, total=sum(len(fault.tries) for fault in results))
        jobs = []
        for fault in results:
            for number, one in enumerate(fault.tries):
                work = bench.root / f"{fault.name.replace(' ', '-').replace('/', '-')}-{number}"
                jobs.append((fault.name, pool.submit(tried, one, work)))
        total: dict[str, Outcome] = {fault.name: Outcome(0) for fault in results}
        for name, job in jobs:
            bar.update(task, description=name[:34])
            one = job.result()
            sums = total[name]
            sums.tried += one.tried
            sums.recovered += one.recovered
            sums.lost += one.lost
            sums.notes += one.notes
            sums.skipped = sums.skipped or one.skipped
            for note in one.notes:
                bar.console.print(f"[red]{escape(name)}:[/] {escape(note)}", highlight=False, soft_wrap=True)
            bar.advance(task)
    return total


def tried(one: Callable[[Path], Outcome], work: Path) -> Outcome:
    work.mkdir(parents=True)
    began = time.monotonic()
    try:
        result = one(work)
    except Exception as error:
        name = getattr(one.func if isinstance(one, partial) else one, "__name__", "?")
        result = Outcome(1, 0, 0, [f"{name}: {type(error).__name__}: {error}"])
    if os.environ.get("SPECBENCH_FAULTS_TIMES"):
        print(f"{time.monotonic() - began:6.1f} s {work.name}", file=sys.stderr)
    if not result.notes:
        unmounted(work)
        shutil.rmtree(work, ignore_errors=True)
    return result


def unmounted(folder: Path) -> None:
    """Take every disk away that is mounted in a folder."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted(mounts, reverse=True):
        if mount.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", mount], capture_output=True)


def report(result: dict[str, Outcome], seconds: float, seed: int) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("fault", overflow="fold")
    for heading in ("times tried", "runs recovered", "rows lost"):
        table.add_column(heading, justify="right")
    for name, one in result.items():
        if not (one.tried or one.skipped):
            continue
        failed = "bold red" if one.lost or one.recovered < one.tried else ""
        aside = f" [dim](skipped: {escape(one.skipped)})[/]" if one.skipped else ""
        table.add_row(f"{escape(name)}{aside}", str(one.tried), str(one.recovered), str(one.lost), style=failed)
    console = Console(width=80, highlight=False)
    console.print(table)
    console.print(f"{seconds:.0f} s, seed {seed}")


if __name__ == "__main__":
    sys.exit(main())
