"""A target that drafts for itself in fewer bits, next to a small draft: τ, acceptance and speed over vanilla.

Run by `make bench`. The bundled target, greedy, γ = 4, `eager`, one thread; every way decodes every prompt, by turns in
one process. All texts are to be vanilla's.
"""

import sys

import numpy as np
import torch
from benches import built, prompts, race

from specbench.base.stats import Interval, pooled_rate
from specbench.config import PairSpec
from specbench.config import load_pair as read_pair
from specbench.engine.clock import Stopwatch
from specbench.engine.models.pair import load_pair

DOCUMENTS = 6  # of each family
SMALL = "pocket-weak"
SCHEMES = ("int8", "int4")


def main() -> int:
    torch.set_num_threads(1)
    spec = read_pair(SMALL)
    pairs = {"small": load_pair(spec, device="cpu")}
    for scheme in SCHEMES:
        own = PairSpec(name=scheme, description="", target=spec.target, draft={"of": "target", "weights": scheme})
        pairs[scheme] = load_pair(own, device="cpu")
    small, watch = pairs["small"], Stopwatch(torch.device("cpu"))
    methods = {"vanilla": built("vanilla", small, watch)}
    methods |= {name: built("sps", pair, watch, gamma=4) for name, pair in pairs.items()}
    texts = prompts(small, DOCUMENTS)
    for method in methods.values():  # warm
        race({"": method}, small, texts[:1], watch)
    raced = race(methods, small, texts, watch, prefill=1)
    print(f"sps on the target of {SMALL}, {len(texts)} documents; torch {torch.__version__}; 95 % intervals")
    wrong = 0
    for name in pairs:
        rounds = [text.rounds[1:] for text in raced.texts[name]]
        drafted, accepted = (
            np.array([sum(getattr(r, w) for r in round_) for round_ in rounds]) for w in ("drafted", "accepted")
        )
        tau = pooled_rate(raced.tokens[name], np.array([len(round_) for round_ in rounds], float))
        share = pooled_rate(accepted.astype(float), drafted.astype(float))
        same = sum(a.tokens == b.tokens for a, b in zip(raced.texts[name], raced.texts["vanilla"], strict=True))
        print(f"  draft {name}: τ {words(tau)}, accepted {words(share)}; {same} of {len(texts)} texts are vanilla's")
        wrong += same < len(texts)
    raced.print_speedups("  ", *((name, "vanilla") for name in pairs))
    return int(wrong > 0)


def words(one: Interval | None) -> str:
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" if one else "-"


if __name__ == "__main__":
    sys.exit(main())
