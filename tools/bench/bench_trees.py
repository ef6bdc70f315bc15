"""What a round costs that verifies a tree, against one that verifies a chain of the same width.

Run by `make bench`. A round here is what the target has to do: one forward over the last token and K drafted ones, the
acceptance (at T = 1 of drawn drafts), and keeping √K of them in the cache: a chain's first ones, of a tree a path whose
tokens lie apart. Both are interleaved in one process over the same contexts, greedy and at T = 1; the ratio's interval
is a bootstrap over rounds. Exits with 1 if a tree of 16 tokens takes a tenth longer than a chain of 16.
"""

import math
import random
import sys
from time import perf_counter

import numpy as np
import torch
from benches import by_turns

from specbench.config import load_pair as read_pair
from specbench.engine.accept import exact
from specbench.engine.models.pair import load_pair
from specbench.engine.speculate import read_once
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Sampling
from specbench.measure.prompts import encode
from specbench_extras.bench.prompts import bundled_prompts

SIZES = (4, 16, 32, 60)  # drafted tokens (K)
CONTEXTS = (200, 1500)
ROUNDS = 60
BOUND = 1.1


def main() -> int:
    pair = load_pair(read_pair("pocket"))
    text = [token for prompt in bundled_prompts("cnndm", 12) for token in encode(pair, prompt)]
    too_slow = False
    for context in CONTEXTS:
        session = pair.session("target")
        session.restart(text[:context])
        for sampling in (Sampling(), Sampling(1.0)):
            for size in SIZES:
                chain, tree = measured(session, text, size, sampling, pair.device)
                ratio, low, high = interval(tree, chain)
                print(
                    f"context {context}, {'T = 1 ' if sampling.temperature else 'greedy'}, {size:2} drafted: chain "
                    f"{1e3 * np.median(chain):5.2f} ms, tree {1e3 * np.median(tree):5.2f} ms, "
                    f"ratio {ratio:.2f} [{low:.2f}, {high:.2f}]"
                )
                too_slow = too_slow or (size == 16 and ratio > BOUND)
    return int(too_slow)


def measured(session, text, size, sampling, device):
    """Seconds of ROUNDS rounds with a chain, and of as many with a tree, the cache as before after each."""
    places, context = random.Random(1), len(session)
    rng = torch.Generator(device).manual_seed(0)
    seconds = {"chain": [], "tree": []}
    for kinds in by_turns(list(seconds), ROUNDS + 3):  # the first ones warm up
        at = places.randrange(len(text) - size - 1)
        last, tokens = text[at : at + 1], torch.tensor(text[at + 1 : at + 1 + size], device=device)
        for kind in kinds:
            q = None if sampling.greedy else random_rows(size, session.vocabulary, device)
            began = perf_counter()
            if kind == "chain":
                draft, accept = Draft(tokens, q), exact
            else:  # any distinct tokens do: a sorted id for each keeps siblings apart
                draft, accept = Draft(torch.arange(10, 10 + size, device=device), q, parents=bushy(size)), exact_tree
            accept(draft, read_once(session, last, draft), sampling, rng)
            session.keep(context + 1, spine(draft, size))
            seconds[kind].append(perf_counter() - began)
            session.truncate(context)
    return tuple(np.array(seconds[kind][3:]) for kind in ("chain", "tree"))


def random_rows(size, vocabulary, device):
    """Distributions [size, V] that the drafted tokens might have been drawn from."""
    return torch.randn(size, vocabulary, generator=torch.Generator().manual_seed(1)).softmax(-1).to(device)


def bushy(size):
    """Parents of a tree with about √K levels, each as wide as the first; a token of a level follows the first above."""
    width = math.ceil(math.sqrt(size))
    return tuple(i // width * width - width if i >= width else -1 for i in range(size))


def spine(draft, size):
    """The accepted path: the first tokens of a chain, and of a tree the first of each level, which the next follow."""
    width = math.ceil(math.sqrt(size))
    return range(0, size, width) if draft.parents else range(width)


def interval(tree, chain):
    """The ratio of the medians, and a 95 % bootstrap interval over rounds."""
    draws = np.random.default_rng(0).integers(0, len(tree), (2000, len(tree)))
    ratios = np.median(tree[draws], axis=1) / np.median(chain[draws], axis=1)
    return np.median(tree) / np.median(chain), *np.quantile(ratios, (0.025, 0.975))


if __name__ == "__main__":
    sys.exit(main())
