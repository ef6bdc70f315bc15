"""Where the driver of a pool (measure/pool.py) becomes the limit: its measured costs, in a simulation of many workers.

`python tools/bench/bench_pool.py`. What the driver takes to hear of a document, and to give a shard, is measured with
as many pipes and shards as there are workers, in CPU time: the driver waits for nobody, and other work does not count.
The simulation has a virtual clock: workers decode documents of a fixed length and never wait for the driver but for
their next shard; the driver takes one message after another. What the progress bar costs, some redraws a second, is
left out.
"""

import heapq
import random
import statistics
import sys
import tempfile
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from time import process_time

from specbench.measure.crew import Crew, Worker
from specbench.measure.pool import EACH, ShardPool
from specbench.measure.worker import SHOWN, Advanced, Ended, Ready

WORKERS = (1, 16, 64, 256)
SECONDS = (0.1, 1.0, 10.0)  # of a document, by all methods
DOCUMENTS = 20  # of each shard
MESSAGES = 300
ROUNDS = 200  # of a document, which the progress bar is told
SHARE = 0.01  # of the workers' time that may be lost at 256 workers and a second a document


def costs(workers: int) -> tuple[float, float]:
    """The driver's median seconds for a document that a worker has decoded, and for a shard that it has ended."""
    rounds = [dict.fromkeys(SHOWN, 1) for _ in range(ROUNDS)]
    with tempfile.TemporaryDirectory() as folder:
        lines = [Pipe() for _ in range(workers)]
        crew = [Worker(n, mine, Path("log"), lambda: "") for n, (mine, _) in enumerate(lines, 1)]
        pool = ShardPool(Path(folder), Crew(crew, wait), None)
        pool.each = workers + MESSAGES  # so that there is a shard for every message
        for number in range(1, pool.each + 1):
            (Path(folder) / "shards" / str(number)).mkdir(parents=True)
        for _, theirs in lines:
            theirs.send(Ready(10**6, 10**6))
            for worker in pool.heard(1):
                pool.hear(worker)
        seconds: dict[type, list[float]] = {Advanced: [], Ended: []}
        for number in range(2 * MESSAGES):
            _, theirs = random.Random(number).choice(lines)
            message = Ended(True) if number % 2 else Advanced(1, "task", rounds)
            theirs.send(message)
            began = process_time()
            for worker in pool.heard(1):
                pool.hear(worker)
            seconds[type(message)].append(process_time() - began)
            while theirs.poll():
                theirs.recv()
        for ends in lines:
            for end in ends:
                end.close()
    return statistics.median(seconds[Advanced]), statistics.median(seconds[Ended])


def simulate(workers: int, shards: int, documents: int, seconds: float, hearing: float, giving: float) -> float:
    """The share of their time in which workers decode, until the last shard is done.

    `seconds` of a document; the driver's for each message of a document, and for each end of a shard, which gives the
    next one. All workers begin with a shard.
    """
    left = shards - workers
    coming = [(seconds * (n + 1) / workers, n, documents) for n in range(workers)]  # out of step with each other
    heapq.heapify(coming)
    free = last = 0.0
    while coming:
        at, worker, to_do = heapq.heappop(coming)
        free = max(free, at) + (hearing if to_do else giving)
        if to_do > 1:
            heapq.heappush(coming, (at + seconds, worker, to_do - 1))
        elif to_do == 1:  # the end follows the last document
            heapq.heappush(coming, (at, worker, 0))
        else:
            last = free
            if left:
                left -= 1
                heapq.heappush(coming, (free + seconds, worker, documents))
    return shards * documents * seconds / (workers * last)


def main() -> int:
    print("workers, the driver's ms for a document and a shard, and the time share of decoding, by s a document")
    lost = 0.0
    for workers in WORKERS:
        hearing, giving = costs(workers)
        ideal = [simulate(workers, EACH * workers, DOCUMENTS, seconds, 0, 0) for seconds in SECONDS]
        shares = [simulate(workers, EACH * workers, DOCUMENTS, seconds, hearing, giving) for seconds in SECONDS]
        shares = [share / best for share, best in zip(shares, ideal, strict=True)]
        cells = ", ".join(f"{seconds:g} s: {share:.2%}" for seconds, share in zip(SECONDS, shares, strict=True))
        print(f"{workers:4}  {1e3 * hearing:.2f} {1e3 * giving:.2f}  {cells}; full at {1 / hearing:,.0f} documents/s")
        lost = 1 - shares[1]
    print(f"{WORKERS[-1]} workers lose {lost:.2%} of their time to the driver; at most {SHARE:.0%}")
    return int(lost > SHARE)


if __name__ == "__main__":
    sys.exit(main())
