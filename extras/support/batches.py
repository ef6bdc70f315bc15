"""Texts of tiny pairs for batches: prompts and lengths, no two alike, and what each text is alone."""

import functools

import oracle
from builders_engine import made as tiny_pair
from cospec_models import slow_target
from gates import lively_prompt, pair

from specbench.engine.models.pair import Pair

GAMMA = 4


def made(architecture) -> Pair:
    return tiny_pair(*pair(architecture))


@functools.cache
def several(architecture) -> list[tuple[list[int], int]]:
    """Prompts and lengths of texts, no two alike; the first says many different things."""
    rest = oracle.prompts(3, length=21, seed=6)
    lively = lively_prompt(architecture, 12, 40)[0]
    return [(lively, 34), (rest[0], 9), (rest[1][:3], 26), (rest[2][:1], 1)]


@functools.cache
def alone(architecture) -> list[list[int]]:
    return [oracle.greedy(slow_target(architecture), prompt, count) for prompt, count in several(architecture)]
