"""What a datastore costs to build and to look up in: seconds, peak memory, microseconds a draft.

`python tools/bench/bench_datastore.py [--tokens N] [--shard N] [--folder FOLDER]`, of synthetic Zipf tokens with
repeated stretches. Exits with 1 where a draft takes longer than the bound for its size, or building takes more than two
seconds or more memory than 64 bytes for each token of a shard.
"""

import argparse
import resource
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch

from specbench import config
from specbench.engine.models.tokenizer import load_tokenizer, vocabulary_hash
from specbench.engine.types import Sampling
from specbench.methods.lookup import rest
from specbench.methods.lookup.rest_datastore import Datastore, find_datastore
from specbench_extras.datastore.build import SHARD, build

VOCABULARY = 128_000
DOCUMENT = 1000  # tokens
DRAFTS = 300
SECONDS, BYTES = 2.0, 64  # a million tokens; a token of a shard
SMALL, LARGE = 2e-3, 10e-3  # the longest that a median draft may take: with the shipped datastore, with a made one


def documents(tokens: int) -> Iterator[list[int]]:
    """Zipf tokens; a fifth of each document stood in one of the 100 before it."""
    rng = np.random.default_rng(0)
    before: list[np.ndarray] = []
    for _ in range(-(-tokens // DOCUMENT)):
        one = np.minimum(rng.zipf(1.2, DOCUMENT), VOCABULARY - 1)
        if before:
            at = rng.integers(DOCUMENT * 4 // 5)
            one[at : at + DOCUMENT // 5] = before[rng.integers(len(before))][at : at + DOCUMENT // 5]
        before = [*before[-99:], one]
        yield one.tolist()


def contexts(store: Datastore, count: int) -> list[list[int]]:
    """Places of a datastore: half as they stand there, half with a token that breaks the suffix after three."""
    rng = np.random.default_rng(1)
    results = []
    for number in range(count):
        at = int(rng.integers(20, len(store._tokens) - 20))
        one = store._tokens[at - 20 : at].astype(np.int64) % (store.about.largest + 1)
        if number % 2:
            one[-4] = rng.integers(store.about.largest)
        results.append(one.tolist())
    return results


def per_draft(name: str, store: Datastore, **changes: object) -> float:
    """Print and return the median seconds of a draft."""
    settings = config.validated(rest.Settings, {**config.load_method("rest").values, **changes}, "rest")
    drafter = rest._retrieval(settings, store, torch.device("cpu"))
    asked = contexts(store, DRAFTS)
    seconds, drafted = [], 0
    for context in (*asked[:20], *asked):
        began = perf_counter()
        draft = drafter.propose(context, settings.gamma, Sampling(), torch.Generator())
        seconds.append(perf_counter() - began)
        drafted += len(draft.tokens)
    seconds = sorted(seconds[20:])
    median = statistics.median(seconds)
    print(
        f"{name}: {1e6 * median:.0f} µs a draft, 95 % within {1e6 * seconds[int(0.95 * DRAFTS)]:.0f} µs; "
        f"{drafted / (DRAFTS + 20):.1f} tokens"
    )
    return median


def peak() -> float:
    """Bytes of memory at most so far."""
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=2_000_000)
    parser.add_argument("--shard", type=int, default=SHARD)
    parser.add_argument("--folder", type=Path, default=None, help="where to build; default: a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        before, began, making = peak(), process_time(), 0.0

        def timed() -> Iterator[list[int]]:
            nonlocal making
            source = documents(given.tokens)
            while True:
                start = process_time()
                one = next(source, None)
                making += process_time() - start
                if one is None:
                    return
                yield one

        about = build(timed(), Path(folder) / "store", VOCABULARY, "made", {}, given.shard)
        seconds, memory = process_time() - began - making, peak() - before
        print(
            f"{about.tokens} tokens, {about.shards} shards, {sum(about.sizes.values()) / 2**20:.0f} MiB on disk: "
            f"{seconds:.1f} s of CPU time to build, {1e6 * seconds / about.tokens:.2f} a million; "
            f"{memory / 2**20:.0f} MiB of memory at most, next to {before / 2**20:.0f} before"
        )
        store = Datastore(Path(folder) / "store")
        made = per_draft("made", store)
        made_filled = per_draft("made, with tri-grams", store, ngram=3)
    shipped = find_datastore("auto", vocabulary_hash(load_tokenizer(config.load_pair("pocket").target)))
    small = per_draft("pocket's", shipped)
    per_draft("pocket's, with tri-grams", shipped, ngram=3)
    held = min(given.shard, about.tokens)
    slow = 1e6 * seconds / about.tokens > SECONDS or memory > BYTES * held + 100 * 2**20
    return int(slow or made > LARGE or made_filled > 4 * LARGE or small > SMALL)


if __name__ == "__main__":
    sys.exit(main())
