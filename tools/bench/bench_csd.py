"""What CSD's own work costs: memory look-ups, gate and counting, as a share of decode time (its section 5.7).

Run by `make bench`; exits with 1 above one percent, with the pair's own memory or with one of a million pairs.
"""

import random
import sys
from time import perf_counter

from benches import clocked, decode, prompts

from specbench.config import load_method, validated
from specbench.config import load_pair as read_pair
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.pair import load_pair
from specbench.methods.lossy.csd import CSD, Settings
from specbench.methods.lossy.csd_memory import Memory, find_memory

DOCUMENTS = 10  # of each family
BOUND = 0.01


def main() -> int:
    pair = load_pair(read_pair("pocket"))
    settings = validated(Settings, load_method("csd").values, "csd")
    documents = prompts(pair, DOCUMENTS)
    own = find_memory("auto", "universal", pair)
    memories = {"none": Memory({}), "the pair's own": own or Memory({}), "a million pairs": Memory({"": million(pair)})}
    share = {}
    for name, memory in memories.items():
        method = CSD(pair.session("target"), ModelDrafter(pair.session("draft")), settings, memory)
        method.reset()
        decode(method, pair, documents[0])
        scans: list[float] = []
        began = perf_counter()
        with clocked((method, "rescue_or_stop", scans)):
            for prompt in documents:
                decode(method, pair, prompt)
        share[name] = sum(scans) / (perf_counter() - began)
        each = 1e6 * sum(scans) / len(scans)
        print(f"csd with {name}: {share[name]:.3%} of the time, {each:.1f} µs a round, {len(scans)} rounds")
    return int(max(share.values()) > BOUND)


def million(pair) -> dict[tuple[int, int], int]:
    """A million different pairs, each rejected once, so that they are looked up and do not decide."""
    rng, result = random.Random(0), {}
    while len(result) < 1_000_000:
        result[rng.randrange(pair.vocabulary), rng.randrange(pair.vocabulary)] = 1
    return result


if __name__ == "__main__":
    sys.exit(main())
