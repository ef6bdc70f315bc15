"""Makes typical.json: paths that Medusa's own code accepts. Call with a folder that holds a checkout of it:

python tests/official/typical.py MEDUSA tests/official/typical.json

MEDUSA is github.com/FasterDecoding/Medusa at e2a5d20c. Its file medusa/model/utils.py is read; the functions called are
generate_medusa_buffers and evaluate_posterior with `fast`, which is the default of medusa_generate.
"""

import random
import sys

import torch
from checkout import module, store

SIZE = 7  # of the vocabulary; nothing says token 0, with which the official code fills short paths
VALUES = [(0.09, 0.3), (0.3, 0.09), (0.3, 0.4)]


def case(number: int, official) -> dict:
    rng = random.Random(number)
    parents, tokens, paths = [], [], []
    while len(tokens) < 3 + number % 8:
        parent, token = rng.randrange(-1, len(tokens)), rng.randrange(1, SIZE)
        if (parent, token) not in zip(parents, tokens, strict=True):
            parents.append(parent)
            tokens.append(token)
            paths.append([*(paths[parent] if parent >= 0 else []), len(tokens)])
    logits = [[-40.0] + [round(rng.gauss(0, 2), 2) for _ in range(SIZE - 1)] for _ in range(len(tokens) + 1)]
    temperature, (epsilon, delta) = (0.0, 0.7, 1.0)[number % 3], VALUES[number // 3 % 3]

    retrieve = official.generate_medusa_buffers([list(path) for path in paths], "cpu")["retrieve_indices"]
    order = [0, *(path[-1] for path in sorted(paths, key=lambda path: (len(path), path)))]  # its nodes by ours
    rows = torch.tensor(logits, dtype=torch.float64)[torch.tensor(order)]
    drafted = torch.tensor([0, *(tokens[node - 1] for node in order[1:]), 0])
    best, length = official.evaluate_posterior(
        rows[retrieve], drafted[retrieve], temperature, epsilon, delta, sampling="typical", fast=True
    )
    chosen = [order[node] for node in retrieve[int(best), : int(length) + 1].tolist()]
    return {
        "tokens": tokens,
        "parents": parents,
        "logits": logits,
        "temperature": temperature,
        "epsilon": epsilon,
        "delta": delta,
        "path": [node - 1 for node in chosen[1:]],
        "next": int(torch.tensor(logits)[chosen[-1]].argmax()),  # generate_candidates with `fast`
    }


def main(checkout: str, out: str, count: str = "45") -> None:
    store(case, module(checkout, "medusa/model/utils.py"), out, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
