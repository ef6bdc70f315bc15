"""How long `specbench compare` takes over ten million rounds, and how much memory: part of `make bench`."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from synthetic import scores, write_run

from specbench.base.console import console
from specbench.results import records

TASKS, METHODS, ROUNDS = 4, 8, 62
MOST_SECONDS, MOST_MEGABYTES = 10, 1500  # for ten million rounds on two cores
MEASURED = """
import resource, sys, time
from pathlib import Path
from specbench.analysis import compare, pooled
from specbench.results.stored import StoredRun
began = time.perf_counter()
table = compare.summary(pooled.measured([StoredRun(Path(sys.argv[1]))]))
seconds = time.perf_counter() - began
print(len(table), seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def make(folder: Path, rows: int) -> None:
    """A run of 4 tasks × 8 methods whose rounds table has about so many rows, γ = 6."""
    rng = np.random.default_rng(0)
    documents = rows // (TASKS * METHODS * ROUNDS)
    methods = ["plain", *(f"method-{i}" for i in range(1, METHODS))]
    samples, score_rows = [], []
    for t in range(TASKS):
        for method in methods:
            seconds = rng.gamma(9.0, 0.1, documents)
            for doc in range(documents):
                key = {"repeat": 0, "task": f"task-{t}", "doc_id": doc, "method": method, "warmup": False}
                times = {"prefill_seconds": 0.1, "decode_seconds": seconds[doc], "peak_memory": 1}
                samples.append(key | times | {"finish": "eos"})
            score_rows += scores(method, rng.integers(0, 2, documents).tolist(), task=f"task-{t}")
    write_run(folder, samples, [], score_rows)
    schema = pa.schema([field for field in records.ROUNDS if not pa.types.is_list(field.type)])
    with pq.ParquetWriter(folder / "rounds.parquet", schema, compression="zstd") as writer:
        for t in range(TASKS):
            for doc in range(0, documents, 250):  # as a run writes them: all methods of a document together
                block = np.arange(doc, min(doc + 250, documents))
                count = len(block) * METHODS * ROUNDS
                drafted = np.full(count, 6, np.int32)
                accepted = rng.binomial(6, 0.7, count).astype(np.int32)
                columns = {
                    "repeat": np.zeros(count, np.int32),
                    "task": np.full(count, f"task-{t}"),
                    "doc_id": np.repeat(block, METHODS * ROUNDS).astype(np.int32),
                    "method": np.tile(np.repeat(methods, ROUNDS), len(block)),
                    "warmup": np.zeros(count, bool),
                    "round": np.tile(np.arange(ROUNDS, dtype=np.int32), len(block) * METHODS),
                    "drafted": drafted,
                    "accepted": accepted,
                    "rescued": np.zeros(count, np.int32),
                    "committed": accepted + 1,
                    "truncated": np.zeros(count, np.int32),
                    "target_forwards": np.ones(count, np.int32),
                    "draft_forwards": drafted,
                    "target_seconds": np.full(count, 0.006),
                    "draft_seconds": np.full(count, 0.006),
                    "seconds": np.full(count, 0.0125),
                }
                writer.write_table(pa.table(columns, schema=schema))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        make(folder, rows)
        stored = pq.read_metadata(folder / "rounds.parquet").num_rows
        printed = subprocess.run(
            [sys.executable, "-c", MEASURED, folder], capture_output=True, text=True, check=True
        ).stdout.split()
    lines, seconds, megabytes = int(printed[0]), float(printed[1]), float(printed[2])
    over = seconds > MOST_SECONDS or megabytes > MOST_MEGABYTES
    console.print(f"compare of {stored / 1e6:.1f} million rounds: {lines} rows in {seconds:.1f} s, {megabytes:.0f} MB")
    if over and rows <= 10_000_000:
        sys.exit(f"that is over the bound of {MOST_SECONDS} s and {MOST_MEGABYTES} MB")


if __name__ == "__main__":
    main()
