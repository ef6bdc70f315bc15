"""How far `simulate` is off: every draft length of a run, foretold from every other, as a CSV file.

    python tools/recipes/simulate_errors.py results/reference/simulate-errors.csv runs/lengths [PAIR…] [--processor]

Decodes with each pair by `sps` at γ = 1, 2, 4 and 8, or goes on with the runs in the folder: pocket, pocket-weak,
smollm2 and qwen2.5-coder unless pairs are named, in some minutes on an idle machine. With `--processor` times are those
of the process on one thread, and not of the wall clock, which another process cannot lengthen by taking its turn; it
still shares the memory.

`uncertain` is half the 95 % interval of an error: by how much it varies with the documents, whose seconds vary with
whatever else the machine did (jackknife: the simulation without each of ten blocks of documents, or each document).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import scipy
from rich.progress import track

from specbench.analysis.simulate import simulate
from specbench.analysis.simulated_rows import ALL
from specbench.results.stored import StoredRun

PAIRS = {  # documents of each task, and what else a run needs
    "pocket": ["--suite", "pocket", "--limit", "10"],
    "pocket-weak": ["--suite", "pocket", "--limit", "10"],
    "smollm2": ["--suite", "everyday", "--limit", "4", "--max-new-tokens", "48"],
    "qwen2.5-coder": ["--suite", "everyday", "--limit", "1", "--max-new-tokens", "64"],
}
LENGTHS = "gamma=1,2,4,8"
BLOCKS = 10  # of documents
PROCESSOR = "--processor"
SPECBENCH = "from specbench.cli import main; main()"
OF_PROCESSOR = "import time; time.perf_counter = time.process_time; "


def main(out: str, store: str, *pairs: str, processor: bool = False) -> None:
    found = []
    for pair in pairs or PAIRS:
        folder = Path(store) / pair
        if not (folder / "summary.parquet").exists():
            decode(pair, folder, processor)
        run = StoredRun(folder)
        frame = pd.DataFrame(rows(run))
        found.append(frame.assign(uncertain=uncertainty(run, frame)))
    frame = pd.concat(found)
    frame.to_csv(out, index=False)
    print(frame.round(3).to_string(index=False))


def decode(pair: str, folder: Path, processor: bool) -> None:
    """A sweep over the lengths, or the rest of the one in the folder; in processor seconds on one thread."""
    words = ["sweep", "--pair", pair, "--method", "sps", "--param", LENGTHS, *PAIRS[pair], "--out", str(folder)]
    if (folder / "manifest.json").exists():
        words = ["run", "--resume", str(folder)]
    program = OF_PROCESSOR + SPECBENCH if processor else SPECBENCH
    threads = {"OMP_NUM_THREADS": "1"} if processor else {}
    subprocess.run([sys.executable, "-c", program, *words], check=True, env=os.environ | threads)


def rows(run: StoredRun) -> Iterator[dict[str, Any]]:
    """A row for each recorded length and each foretold one: tokens/s, and by which share they are off."""
    lengths = {spec.values["gamma"]: spec.name for spec in run.plan.methods if "gamma" in spec.values}
    for recorded, method in lengths.items():
        simulated = simulate(run, method, None, sorted(lengths))
        facts = {"pair": run.plan.pair.name, "documents": simulated.texts, "recorded": f"gamma={recorded}"}
        for row in simulated.table[simulated.table.task == ALL].to_dict("records"):
            if row["measured"] != method:
                known = {name: row[name] for name in ("setting", "tau", "tokens_per_s", "measured_tokens_per_s")}
                yield facts | known | {"error": row["tokens_per_s"] / row["measured_tokens_per_s"] - 1}


def uncertainty(run: StoredRun, frame: pd.DataFrame) -> pd.Series:
    """Half the 95 % interval of each error: by what the errors without each block of documents differ."""
    texts = run.samples(["task", "doc_id", "warmup"]).query("~warmup")[["task", "doc_id"]].drop_duplicates()
    count = min(BLOCKS, len(texts))
    errors = []
    for block in track(np.array_split(np.arange(len(texts)), count), f"{run.plan.pair.name} without each block"):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(run.folder / "manifest.json", folder)
            for name in ("samples.parquet", "rounds.parquet"):
                whole = pq.read_table(run.folder / name)
                keys = pd.MultiIndex.from_frame(whole.select(["task", "doc_id"]).to_pandas())
                pq.write_table(
                    whole.filter(~keys.isin(pd.MultiIndex.from_frame(texts.iloc[block]))), f"{folder}/{name}"
                )
            errors.append(pd.DataFrame(rows(StoredRun(Path(folder)))).error)
    without = pd.concat(errors, axis=1)
    assert len(without) == len(frame)
    return without.std(axis=1, ddof=0) * (count - 1) ** 0.5 * scipy.stats.t.ppf(0.975, count - 1)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != PROCESSOR]
    main(*words, processor=len(words) < len(sys.argv) - 1)
