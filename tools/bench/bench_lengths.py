"""What SpecDec++'s head costs next to a draft forward, and what its draft lengths bring against a fixed one.

Run by `make bench`; exits with 1 where the head takes more than five percent of a draft forward, or a text is not
vanilla's. Speeds are interleaved in one process; the tuned fixed length is that of suites/methods/sps-pocket.yaml.
"""

import statistics
import sys

from benches import built, clocked, decode, prompts, race

from specbench.config import load_pair as read_pair
from specbench.engine.clock import Stopwatch
from specbench.engine.models.pair import load_pair
from specbench.methods.lengths import specdecpp

DOCUMENTS = 10  # of each family
BOUND = 0.05
METHODS = ("vanilla", "sps-pocket", "specdecpp-pocket", "confidence", "oracle")


def main() -> int:
    pair = load_pair(read_pair("pocket"))
    watch, documents = Stopwatch(pair.device), prompts(pair, DOCUMENTS)
    methods = {name: built(name, pair, watch) for name in METHODS}
    for method in methods.values():
        decode(method, pair, documents[0], watch)
    rule = methods["specdecpp-pocket"].drafter.lengths
    head, inputs, policy = [], [], []
    with clocked((rule.head, "probability", head), (specdecpp, "features", inputs), (rule, "enough", policy)):
        raced = race(methods, pair, documents, watch)
    drafting = [f for text in raced.texts["specdecpp-pocket"] for lap in text.laps[1:] for f in lap.forwards]
    forward = statistics.median(f.seconds for f in drafting if (f.model, f.width) == ("draft", 1))
    texts = [[text.tokens for text in raced.texts[name]] for name in METHODS]
    same = all(text == texts[0] for text in texts)
    own = statistics.median(head) + statistics.median(inputs or [0.0])  # a head may read the state alone
    whole = statistics.median(policy)
    print(f"head, with its inputs put together: {1e6 * own:.0f} µs, {own / forward:.1%} of a draft forward")
    print(f"all that the policy does after a token: {1e6 * whole:.0f} µs, {whole / forward:.1%}; {len(policy)} tokens")
    raced.print_speedups("", *((name, "sps-pocket") for name in ("specdecpp-pocket", "confidence", "oracle")))
    if not same:
        print("some texts are not vanilla's")
    return int(own / forward > BOUND or not same)


if __name__ == "__main__":
    sys.exit(main())
