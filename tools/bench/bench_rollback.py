"""What each way back from rejected tokens costs, on the bundled models whose states cannot be cut.

    python tools/bench/bench_rollback.py
    python tools/bench/bench_rollback.py 10 results/reference/rollback

The target of `pocket-hybrid` (gated delta nets) by the state that is kept, with tokens read again, and token by token;
its draft as a target of its own (a short convolution), also by the cache's recording. Documents of each family, and
where a table and its facts go, without an ending. Greedy, `eager`, one thread; every way decodes every prompt, by turns
in one process. All texts are to be vanilla's.
"""

import sys
from typing import Any

import numpy as np
import pandas as pd
import torch
from benches import Raced, Text, built, prompts, race, store

from specbench.base.stats import Paired, pooled_rate, speedup
from specbench.config import PairSpec
from specbench.config import load_pair as read_pair
from specbench.engine.clock import Stopwatch
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.runtimes import states
from specbench.engine.runtimes.mixers import Counted

PAIR = "pocket-hybrid"
METHODS: dict[str, dict[str, Any]] = {"pld": {}, "sps": {"gamma": 4}, "mtp": {"steps": 3}}
OF_TARGET, OF_DRAFT = (states.AGAIN, states.STEPS), (states.RECORDED, states.AGAIN, states.STEPS)
Case = tuple[str, str, str]  # model, method, way


def main(documents: str = "3", out: str | None = None) -> int:
    torch.set_num_threads(1)
    watch = Stopwatch(torch.device("cpu"))
    both = read_pair(PAIR)
    assert both.draft
    alone = PairSpec(name="hybrid-draft", description="", target=both.draft)
    cases: dict[Case, Pair] = {("gated delta", "vanilla", "-"): load_pair(both, device="cpu")}
    cases |= {("gated delta", name, way): load_pair(both, device="cpu") for name in METHODS for way in OF_TARGET}
    cases |= {("convolution", "vanilla", "-"): load_pair(alone, device="cpu")}
    cases |= {("convolution", "pld", way): load_pair(alone, device="cpu") for way in OF_DRAFT}
    methods = {}
    for (_, name, way), pair in cases.items():
        if way != "-":
            prepared(pair).way = way
        methods[" ".join((_, name, way))] = built(name, pair, watch, **METHODS.get(name, {}))
    first = next(iter(cases.values()))
    texts = prompts(first, int(documents))
    for method in methods.values():  # warm
        race({"": method}, first, texts[:1], watch)
    for pair in cases.values():
        prepared(pair).counted = Counted()
    raced = race(methods, first, texts, watch, prefill=1)
    rows = [row(case, pair, raced) for case, pair in cases.items()]
    print(f"{len(texts)} documents; torch {torch.__version__}; 95 % intervals")
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    if out:
        store(table, out, first, len(texts), settings=METHODS)
    return int(not table.texts_equal.eq(len(texts)).all())


def prepared(pair: Pair) -> Any:
    return states.mixers(pair.models["target"])


def row(case: Case, pair: Pair, raced: Raced) -> dict[str, Any]:
    """The figures of a case; copies and tokens read again are those of the target, for each of its rounds."""
    model, name, way = case
    mine, base = " ".join(case), f"{model} vanilla -"
    texts: list[Text] = raced.texts[mine]
    rounds = np.array([len(text.rounds) - 1 for text in texts], float)
    drafted, accepted = (
        sum(getattr(one, what) for text in texts for one in text.rounds[1:]) for what in ("drafted", "accepted")
    )
    tau, cost = pooled_rate(raced.tokens[mine], rounds), prepared(pair).counted
    times = Paired(raced.seconds[base], raced.tokens[base], raced.seconds[mine], raced.tokens[mine])
    over = speedup(times) if mine != base else None
    assert tau is not None
    return {
        "model": model,
        "method": name,
        "rollback": way,
        "documents": len(texts),
        "tau": round(tau.value, 3),
        "accepted": round(accepted / drafted, 3) if drafted else "",
        "texts_equal": sum(a.tokens == b.tokens for a, b in zip(texts, raced.texts[base], strict=True)),
        "copies_a_round": round(cost.copies / rounds.sum(), 2),
        "kilobytes_a_copy": round(cost.bytes / cost.copies / 1000, 1) if cost.copies else 0.0,
        "copying_ms_a_round": round(1000 * cost.seconds / rounds.sum(), 3),
        "read_again_a_round": round(cost.again / rounds.sum(), 2),
        "ms_a_round": round(1000 * raced.seconds[mine].sum() / rounds.sum(), 2),
        "speedup": round(over.value, 3) if over else "",
        "speedup_low": round(over.low, 3) if over else "",
        "speedup_high": round(over.high, 3) if over else "",
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
