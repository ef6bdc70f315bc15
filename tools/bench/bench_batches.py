"""How much sooner a batch decodes the same texts than one after another does.

Run by `make bench`; exits with 1 where a batch of 16 on the bundled pair takes more than a third of the time of
`vanilla`, or more than half of that of `sps`, at the static runtime in float32. All have their turns, in one process.
A batch that is not timed reads prompts in the forwards of other texts' rounds. Then what reading 16 prompts together
takes, by processor seconds, over reading one after another.
"""

import sys
from dataclasses import replace
from functools import partial
from time import process_time

import numpy as np
import torch
from benches import GREEDY, built, by_turns, prompts

from specbench.base.stats import Interval, Paired, speedup
from specbench.config import BATCHED
from specbench.config import load_pair as read_pair
from specbench.engine.clock import BatchStopwatch, now
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.rows import Batch, Row, Seats
from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.slots import Feed
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
        ways = {
            "one by one": partial(one_by_one, single, pair, texts),
            "batch": partial(batch, rows, pair, texts),
            "untimed": partial(batch, rows, pair, texts, apart=False),
        }
        said = {way: decode() for way, decode in ways.items()}  # also warms up
        same = sum(len(set(map(tuple, three))) == 1 for three in zip(*said.values(), strict=True))
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for names in by_turns(list(ways), TURNS):
            for way in names:
                began = now()
                ways[way]()
                seconds[way].append(now() - began)
        share = ratio(seconds["batch"], seconds["one by one"])
        untimed = words(ratio(seconds["untimed"], seconds["batch"]))
        print(
            f"{name}: a batch of {ROWS} takes {words(share)} of the time (bound {bound:.2f}), one that is not timed "
            f"{untimed} of the batch's; {same} of {len(texts)} texts are equal"
        )
        wrong += share.value > bound
    for runtime in BATCHED:
        for role in ("target", "draft"):
            print(f"prompts of {ROWS} documents, {role}, {runtime}: {words(prefill(pair, role, runtime, texts[::4]))}")
    return int(wrong > 0)


def ratio(mine: list[float], base: list[float]) -> Interval:
    """Seconds over those of a base, by turns."""
    ones = np.ones(len(mine))
    estimate = speedup(Paired(np.array(mine), ones, np.array(base), ones))
    assert estimate
    return estimate


def words(one: Interval) -> str:
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"


def prefill(pair: Pair, role: str, runtime: str, texts: list[list[int]]) -> Interval:
    """Processor seconds of reading prompts in one call, over those of one by one."""
    on = Batched(runtime)
    runners = [on.runner(pair.models[role]) for _ in texts]
    fed = [(runner, Feed(torch.tensor(ids), 1, (), None, None)) for runner, ids in zip(runners, texts, strict=True)]
    ways = {"together": [fed], "one by one": [[one] for one in fed]}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for names in by_turns(list(ways), TURNS + 1):
        for way in names:
            for runner in runners:
                runner.truncate(0)
            began = process_time()
            for group in ways[way]:
                runners[0].rows.forward(group)
            seconds[way].append(process_time() - began)
    return ratio(seconds["together"][1:], seconds["one by one"][1:])


def one_by_one(method: Method, pair: Pair, texts: list[list[int]]) -> list[list[int]]:
    said = []
    for prompt in texts:
        row = begun(method, pair, prompt)
        for _ in row.rounds:
            pass
        said.append(row.ending.tokens)
    return said


def batch(methods: list[Method], pair: Pair, texts: list[list[int]], apart: bool = True) -> list[list[int]]:
    seats: Seats[Method, int] = Seats(Batch(BatchStopwatch(pair.device), apart), methods)
    ended = seats.decode(range(len(texts)), lambda method, index: begun(method, pair, texts[index]))
    said = {index: row.ending.tokens for row, _, index in ended}
    return [said[index] for index in range(len(texts))]


def begun(method: Method, pair: Pair, prompt: list[int]) -> Row:
    ending = Ending(Limits(LENGTH, pair.eos_ids), pair.detokenizer)
    return Row(decode_text(method, prompt, GREEDY, torch.Generator(), ending), ending)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
