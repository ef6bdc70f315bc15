"""What a round of suffix decoding costs the host, and its parts, after short and long contexts, next to prompt lookup.

A round takes in what it committed, looks up the text's end, and makes the draft. Texts are bundled documents.
"""

import os
import statistics
import sys
from types import ModuleType

import torch
from benches import prompts

from specbench.config import load_method
from specbench.config import load_pair as read_pair
from specbench.engine.clock import now
from specbench.engine.models.pair import load_pair
from specbench.engine.types import Sampling
from specbench.methods.lookup import pld, suffix
from specbench_extras.sam import sam

CONTEXTS = (1_000, 8_000)
ROUNDS, STEP, TIMES = 300, 3, 5
METHODS = {"pld": pld, "suffix": suffix, "suffixdecoding": suffix, "anpd": suffix, "sam": sam}


def main() -> int:
    torch.set_num_threads(1)
    pair = load_pair(read_pair("pocket"), device="cpu")
    text = [i for document in prompts(pair, 150) for i in document]
    for name, module in METHODS.items():
        for length in CONTEXTS:
            times = sorted(round_time(module, name, text, length) for _ in range(TIMES))
            least, median = times[0], statistics.median(times)
            load = os.getloadavg()[0]
            print(f"{name}, {length} tokens: {least:.1f} µs a round, median {median:.1f} (load {load:.1f})")
    taking, looking = parts(text, CONTEXTS[-1])
    print(f"of suffix at {CONTEXTS[-1]}: {taking:.1f} µs to take in {STEP} tokens, {looking:.1f} to look up")
    return 0


def round_time(module: ModuleType, name: str, text: list[int], length: int) -> float:
    """The median µs of a round after `length` tokens."""
    settings = module.Settings(**load_method(name).values)
    drafter = module.drafter(settings, None, torch.device("cpu"))
    drafter.begin(text[:length])
    context, rng, times = text[:length], torch.Generator(), []
    for at in range(length, length + ROUNDS * STEP, STEP):
        context += text[at : at + STEP]
        began = now()
        drafter.propose(context, settings.gamma, Sampling(), rng)
        times.append(now() - began)
    return 1e6 * statistics.median(times)


def parts(text: list[int], length: int) -> tuple[float, float]:
    """The median µs of taking in and of looking up alone; the least of several times."""
    settings = suffix.Settings(**load_method("suffix").values)
    results = []
    for _ in range(TIMES):
        automaton = suffix.Automaton(settings.depth)
        drafter = suffix.SuffixDrafter(settings, torch.device("cpu"))
        automaton.extend(text[:length])
        drafter.begin(text[:length])
        taking, looking = [], []
        for at in range(length, length + ROUNDS * STEP, STEP):
            began = now()
            automaton.extend(text[at : at + STEP])
            taken = now()
            drafter._best(automaton, automaton.repeated(settings.longest), settings.gamma)
            looking.append(now() - taken)
            taking.append(taken - began)
        results.append((1e6 * statistics.median(taking), 1e6 * statistics.median(looking)))
    return min(taking for taking, _ in results), min(looking for _, looking in results)


if __name__ == "__main__":
    sys.exit(main())
