"""Laws of short texts, whole: random distributions after every text, and what a round and the target after it give."""

import itertools

import numpy as np

Laws = dict[tuple[int, ...], np.ndarray]  # prefix -> distribution [V] of the next token


def laws(vocabulary: int, depth: int, seed: int, concentration: float = 0.7) -> Laws:
    """Distributions after every text of up to `depth` tokens; some tokens are impossible."""
    rng = np.random.default_rng(seed)
    result = {}
    for length in range(depth + 1):
        for text in itertools.product(range(vocabulary), repeat=length):
            row = rng.dirichlet(np.full(vocabulary, concentration))
            if rng.random() < 0.2:
                row[rng.integers(vocabulary)] = 0
            result[text] = row / row.sum()
    return result


def chance(law: Laws, text: tuple[int, ...]) -> float:
    return float(np.prod([law[text[:i]][token] for i, token in enumerate(text)]))


def finish(p: Laws, total: np.ndarray, prefix: tuple[int, ...], weight: float, count: int) -> None:
    """Add, in place, the chances of all texts of `count` tokens that begin with `prefix`, by the target's law."""
    v = total.shape[0]
    for rest in itertools.product(range(v), repeat=count - len(prefix)):
        text = (*prefix, *rest)
        more = np.prod([p[text[:i]][text[i]] for i in range(len(prefix), count)])
        total[text] += weight * float(more)


def target_law(p: Laws, vocabulary: int, count: int) -> np.ndarray:
    law = np.zeros((vocabulary,) * count)
    for text in itertools.product(range(vocabulary), repeat=count):
        law[text] = chance(p, text)
    return law
