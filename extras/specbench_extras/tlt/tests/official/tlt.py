"""Makes tlt.json: choices of TLT's own bandit. Call here with a folder that holds a checkout of it:

python tlt.py FASTRL tlt.json

FASTRL is github.com/mit-han-lab/fastrl at bce3df7a. Read is eagle_mab.py in its third-party/sglang/python/sglang/srt/
speculative; called are select_strategy and add_metrics of EpsilonGreedyMAB, whose random numbers are given.
"""

import importlib.util
import json
import random
import sys
from pathlib import Path

FILE = "third-party/sglang/python/sglang/srt/speculative/eagle_mab.py"


def case(number: int, official) -> dict:
    rng, count = random.Random(number), 2 + number % 4
    times, epsilon, window = [1 + place / 2 for place in range(count)], (0.0, 0.3)[number % 2], 3 + number % 6
    names = [f"{place + 1}_1_1" for place in range(count)]
    bandit = official.EpsilonGreedyMAB(names, epsilon=epsilon, window_size=window)
    rounds = []
    for _ in range(40):
        drawn, at, accepted = rng.random(), rng.randrange(count), rng.randrange(6)
        official.np.random.random = lambda value=drawn: value
        official.np.random.choice = lambda every, place=at: every[place]
        chosen = names.index(bandit.select_strategy(names))
        bandit.strategy_metrics[names[chosen]].add_metrics((accepted + 1) / times[chosen], accepted + 1)
        rounds.append([drawn, at, accepted, chosen])
    return {"times": times, "epsilon": epsilon, "window": window, "rounds": rounds}


def main(checkout: str, out: str, count: str = "8") -> None:
    spec = importlib.util.spec_from_file_location("eagle_mab", Path(checkout, FILE))
    official = importlib.util.module_from_spec(spec)
    sys.modules["eagle_mab"] = official
    spec.loader.exec_module(official)
    cases = [case(number, official) for number in range(int(count))]
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
