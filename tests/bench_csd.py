"""What CSD's own work costs: memory look-ups, gate and counting, as a share of decode time (its section 5.7).

Run by `make bench`; exits with 1 above one percent, with the pair's own memory or with one of a million pairs.
"""

import random
import sys
from time import perf_counter

import torch

from specbench.config import load_method, validated
from specbench.config import load_pair as read_pair
from specbench.engine.drafters import ModelDrafter
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.models.pair import load_pair
from specbench.engine.types import Sampling
from specbench.methods.csd import CSD, Settings
from specbench.methods.csd_memory import Memory, find_memory
from specbench.run.prepare import encode
from specbench.studies.bench import FAMILIES, bundled_prompts

DOCUMENTS = 10  # of each family
BOUND = 0.01


def main() -> int:
    pair = load_pair(read_pair("pocket"))
    settings = validated(Settings, load_method("csd").values, "csd")
    prompts = [encode(pair, prompt) for family in FAMILIES for prompt in bundled_prompts(family, DOCUMENTS)]
    own = find_memory("auto", "universal", pair)
    memories = {"none": Memory({}), "the pair's own": own or Memory({}), "a million pairs": Memory({"": million(pair)})}
    share = {}
    for name, memory in memories.items():
        method = Timed(pair.session("target"), ModelDrafter(pair.session("draft")), settings, memory)
        method.reset()
        decode(method, pair, prompts[0])
        method.seconds, method.scans, began = 0.0, 0, perf_counter()
        for prompt in prompts:
            decode(method, pair, prompt)
        share[name] = method.seconds / (perf_counter() - began)
        each = 1e6 * method.seconds / method.scans
        print(f"csd with {name}: {share[name]:.3%} of the time, {each:.1f} µs a round, {method.scans} rounds")
    return int(max(share.values()) > BOUND)


class Timed(CSD):
    """CSD that adds up the time of its scans; the clock itself is counted too."""

    seconds, scans = 0.0, 0

    def scan(self, weighed):
        began = perf_counter()
        verdict = super().scan(weighed)
        self.seconds += perf_counter() - began
        self.scans += 1
        return verdict


def decode(method, pair, prompt) -> None:
    ending = Ending(Limits(96, pair.eos_ids), pair.detokenizer)
    for _ in until_end(method.rounds(prompt, Sampling(), torch.Generator(pair.device)), ending):
        pass


def million(pair) -> dict[tuple[int, int], int]:
    """A million different pairs, each rejected once, so that they are looked up and do not decide."""
    rng, found = random.Random(0), {}
    while len(found) < 1_000_000:
        found[rng.randrange(pair.vocabulary), rng.randrange(pair.vocabulary)] = 1
    return found


if __name__ == "__main__":
    sys.exit(main())
