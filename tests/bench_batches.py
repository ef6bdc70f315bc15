"""How much sooner a batch decodes the same texts than one after another does.

Run by `make bench`; exits with 1 where a batch of 16 on the bundled pair takes more than a third of the time of
`vanilla`, or more than half of that of `sps`, at the static runtime in float32. Both have their turns, in one process.
"""

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from benches import GREEDY, built, by_turns, prompts

from specbench.base.stats import Paired, speedup
from specbench.config import load_pair as read_pair
from specbench.engine.clock import BatchStopwatch, now
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.rows import Batch, Row, Seats
from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.static import STATIC
from specbench.engine.types import Method

ROWS, DOCUMENTS, LENGTH, TURNS = 16, 16, 160, 4
BOUNDS = {"vanilla": 1 / 3, "sps": 1 / 2}


def main() -> int:
    pair = load_pair(read_pair("pocket"), device="cpu")
    texts = prompts(pair, DOCUMENTS)
    alone, together = replace(pair, runtime=STATIC), replace(pair, runtime=Batched(STATIC.name))
    wrong = 0
    for name, bound in BOUNDS.items():
        single, rows = built(name, alone), [built(name, together) for _ in range(ROWS)]
        ways = {"one by one": partial(one_by_one, single, pair, texts), "batch": partial(batch, rows, pair, texts)}
        said = {way: decode() for way, decode in ways.items()}  # also warms up
        same = sum(ours == theirs for ours, theirs in zip(*said.values(), strict=True))
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for names in by_turns(list(ways), TURNS):
            for way in names:
                began = now()
                ways[way]()
                seconds[way].append(now() - began)
        ones = np.ones(TURNS)
        share = speedup(Paired(np.array(seconds["batch"]), ones, np.array(seconds["one by one"]), ones))
        assert share
        print(
            f"{name}: a batch of {ROWS} takes {share.value:.3f} [{share.low:.3f}, {share.high:.3f}] of the time (bound "
            f"{bound:.2f}); {same} of {len(texts)} texts are equal"
        )
        wrong += share.value > bound
    return int(wrong > 0)


def one_by_one(method: Method, pair: Pair, texts: list[list[int]]) -> list[list[int]]:
    said = []
    for prompt in texts:
        row = begun(method, pair, prompt)
        for _ in row.rounds:
            pass
        said.append(row.ending.tokens)
    return said


def batch(methods: list[Method], pair: Pair, texts: list[list[int]]) -> list[list[int]]:
    seats: Seats[Method, int] = Seats(Batch(BatchStopwatch(pair.device)), methods)
    ended = seats.decode(range(len(texts)), lambda method, index: begun(method, pair, texts[index]))
    said = {index: row.ending.tokens for row, _, index in ended}
    return [said[index] for index in range(len(texts))]


def begun(method: Method, pair: Pair, prompt: list[int]) -> Row:
    ending = Ending(Limits(LENGTH, pair.eos_ids), pair.detokenizer)
    return Row(decode_text(method, prompt, GREEDY, torch.Generator(), ending), ending)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
