"""What SpecDec++'s head costs beside a draft forward, and what its draft lengths bring against a fixed one.

Run by `make bench`; exits with 1 where the head takes more than five percent of a draft forward, or a text is not
vanilla's. Speeds are interleaved in one process; the tuned fixed length is that of suites/methods/sps-pocket.yaml.
"""

import random
import statistics
import sys
from time import perf_counter

import numpy as np
import torch

from specbench.base.stats import Paired, speedup
from specbench.config import load_method, validated
from specbench.config import load_pair as read_pair
from specbench.engine import lengths
from specbench.engine.clock import Stopwatch
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.models.pair import load_pair
from specbench.engine.types import Sampling
from specbench.methods import module
from specbench.run.prepare import encode
from specbench.studies.bench import FAMILIES, bundled_prompts

DOCUMENTS = 10  # of each family
BOUND = 0.05
METHODS = ("vanilla", "sps-pocket", "specdecpp-pocket", "confidence", "oracle")


def main() -> int:
    pair = load_pair(read_pair("pocket"))
    watch = Stopwatch(pair.device)
    methods = {}
    for name in METHODS:
        spec = load_method(name)
        settings = validated(module(spec.method).Settings, spec.values, name)
        methods[name] = module(spec.method).build(settings, pair, watch)
    prompts = [encode(pair, prompt) for family in FAMILIES for prompt in bundled_prompts(family, DOCUMENTS)]
    seconds = {name: np.zeros(len(prompts)) for name in methods}
    tokens = {name: np.zeros(len(prompts)) for name in methods}
    for method in methods.values():
        decode(method, pair, prompts[0], watch)
    head, inputs, policy, forwards, same = [], [], [], [], True
    timed(methods["specdecpp-pocket"].drafter.lengths.head, "probability", head)
    timed(lengths, "features", inputs)
    timed(methods["specdecpp-pocket"].drafter.lengths, "enough", policy)
    order = random.Random(0)
    for at, prompt in enumerate(prompts):
        texts = {}
        for name in order.sample(METHODS, len(METHODS)):
            texts[name], laps = decode(methods[name], pair, prompt, watch)
            seconds[name][at] = sum(lap.seconds for lap in laps[1:])
            tokens[name][at] = len(texts[name])
            if name == "specdecpp-pocket":
                forwards += [f.seconds for lap in laps[1:] for f in lap.forwards if (f.model, f.width) == ("draft", 1)]
        same = same and all(text == texts["vanilla"] for text in texts.values())
    forward = statistics.median(forwards)
    own = statistics.median(head) + statistics.median(inputs)
    whole = statistics.median(policy)
    print(f"head, with its inputs put together: {1e6 * own:.0f} µs, {own / forward:.1%} of a draft forward")
    print(f"all that the policy does behind a token: {1e6 * whole:.0f} µs, {whole / forward:.1%}; {len(policy)} tokens")
    for mine, base in (("specdecpp-pocket", "sps-pocket"), ("confidence", "sps-pocket"), ("oracle", "sps-pocket")):
        one = speedup(Paired(seconds[base], tokens[base], seconds[mine], tokens[mine]))
        print(f"{mine} over {base}: {one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" if one else f"{mine}: -")
    if not same:
        print("some texts are not vanilla's")
    return int(own / forward > BOUND or not same)


def decode(method, pair, prompt, watch):
    """A text, and the laps of its rounds."""
    ending = Ending(Limits(96, pair.eos_ids), pair.detokenizer)
    watch.start()
    for _ in until_end(method.rounds(prompt, Sampling(), torch.Generator(pair.device)), ending):
        watch.lap()
    return ending.tokens, watch.laps()


def timed(owner, name: str, found: list[float]) -> None:
    """Have a function or method note the seconds of each call; the clock itself is counted too."""
    ask = getattr(owner, name)

    def asked(*given):
        began = perf_counter()
        value = ask(*given)
        found.append(perf_counter() - began)
        return value

    object.__setattr__(owner, name, asked)


if __name__ == "__main__":
    sys.exit(main())
