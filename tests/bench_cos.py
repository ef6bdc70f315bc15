"""CoS beside standard collaborative decoding, and what combining the models costs of a round.

Run by `make bench`; exits with 1 where combining takes more than ten percent of the decode time, where CoS with γ = 1
is slower than the standard beyond noise (Corollary 3.7), or where a greedy text is not the standard's. Speeds are
interleaved in one process.
"""

import random
import sys
from time import perf_counter

import numpy as np
import torch

from specbench.base.stats import Paired, speedup
from specbench.config import Setting, load_method, validated, variant
from specbench.config import load_pair as read_pair
from specbench.engine.clock import Stopwatch
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.models.pair import load_pair
from specbench.engine.types import Sampling
from specbench.methods import module
from specbench.methods.cos.collaborate import Collaboration
from specbench.methods.cos.combine import Combination
from specbench.run.prepare import encode
from specbench.studies.bench import FAMILIES, bundled_prompts

DOCUMENTS = 8  # of each family
BOUND = 0.10
SETTINGS = (  # pair, temperature, how it is combined
    ("pocket-duo", 1.0, "weighted"),
    ("pocket-trio", 1.0, "weighted"),
    ("pocket-contrast", 0.0, "contrastive"),
    ("pocket-contrast", 1.0, "contrastive"),
)
METHODS = ("ensemble", "cos-naive", "cos-sd", "cos")


def main() -> int:
    return max([compared(*one) for one in SETTINGS])


def compared(name: str, temperature: float, combine: str) -> int:
    pair = load_pair(read_pair(name))
    watch, sampling = Stopwatch(pair.device), Sampling(temperature)
    methods = {}
    for kind in METHODS:
        spec = variant(load_method(kind), {"combine": Setting(value=combine)})
        settings = validated(module(spec.method).Settings, spec.values, kind)
        methods[kind] = module(spec.method).build(settings, pair, watch)
    prompts = [encode(pair, prompt) for family in FAMILIES for prompt in bundled_prompts(family, DOCUMENTS)]
    seconds, tokens = ({kind: np.zeros(len(prompts)) for kind in METHODS} for _ in range(2))
    for method in methods.values():
        decode(method, pair, prompts[0], watch, sampling, 0)
    combining, judging, same, order = [0.0], [0.0], True, random.Random(0)
    for at, prompt in enumerate(prompts):
        texts = {}
        for kind in order.sample(METHODS, len(METHODS)):
            texts[kind], laps = decode(methods[kind], pair, prompt, watch, sampling, at)
            seconds[kind][at] = sum(lap.seconds for lap in laps[1:])
            tokens[kind][at] = len(texts[kind]) - 1
        same = same and (temperature > 0 or all(text == texts["ensemble"] for text in texts.values()))
    whole = own_share(methods["cos"], pair, prompts, watch, sampling, combining, judging)
    shares = combining[0] / whole, judging[0] / whole
    print(f"{name}, {combine}, T = {temperature:g}: combining takes {shares[0]:.1%} of the time of cos, ", end="")
    print(f"judging (with it) {shares[1]:.1%}")
    found = {}
    for mine, base in (("cos", "ensemble"), ("cos-sd", "ensemble"), ("cos-naive", "ensemble"), ("cos", "cos-sd")):
        found[mine, base] = one = speedup(Paired(seconds[base], tokens[base], seconds[mine], tokens[mine]))
        print(f"  {mine} over {base}: {one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" if one else f"  {mine}: -")
    if not same:
        print("  some greedy texts are not the standard's")
    guaranteed = found["cos", "ensemble"]
    return int(shares[0] > BOUND or not same or guaranteed is None or guaranteed.high < 1)


def own_share(method, pair, prompts, watch, sampling, combining, judging) -> float:
    """Decode once more with clocks inside; adds up seconds in place and returns those of all decoding."""
    kept = {(owner, name): getattr(owner, name) for owner, name in INSIDE}
    try:
        for (owner, name), function in kept.items():
            setattr(owner, name, timed(function, judging if owner is Collaboration else combining))
        total = 0.0
        for at, prompt in enumerate(prompts):
            _, laps = decode(method, pair, prompt, watch, sampling, at)
            total += sum(lap.seconds for lap in laps[1:])
    finally:
        for (owner, name), function in kept.items():
            setattr(owner, name, function)
    return total


INSIDE = ((Combination, "rows"), (Combination, "proposal"), (Combination, "combined"), (Collaboration, "judge"))


def timed(function, sums):
    def called(*args, **named):
        began = perf_counter()
        try:
            return function(*args, **named)
        finally:
            sums[0] += perf_counter() - began

    return called


def decode(method, pair, prompt, watch, sampling, seed):
    """A text, and the laps of its rounds."""
    ending = Ending(Limits(96, pair.eos_ids), pair.detokenizer)
    rng = torch.Generator(pair.device).manual_seed(seed)
    watch.start()
    for _ in until_end(method.rounds(prompt, sampling, rng), ending):
        watch.lap()
    return ending.tokens, watch.laps()


if __name__ == "__main__":
    sys.exit(main())
