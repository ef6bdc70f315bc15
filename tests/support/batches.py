"""Texts of tiny pairs for batches: prompts and lengths, no two alike, and what each text is alone."""

import functools

import oracle
from builders_engine import made as tiny_pair
from cospec_models import SHIPPED, slow_target
from gates import decode, lively_prompt, pair

from specbench.engine.drafters import ModelDrafter
from specbench.engine.generate import Ending, Limits
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.methods.collaborative import cospec_batch as rollouts
from specbench.methods.collaborative.cospec import CoSpec, Settings

GAMMA = 4


def made(architecture) -> Pair:
    return tiny_pair(*pair(architecture))


def text_of(prompt, count) -> rollouts.Text:
    return rollouts.Text(prompt, Ending(Limits(count, frozenset()), lambda ids: ""))


@functools.cache
def several(architecture) -> list[tuple[list[int], int]]:
    """Prompts and lengths of texts, no two alike; the first says many different things."""
    rest = oracle.prompts(3, length=21, seed=6)
    lively = lively_prompt(architecture, 12, 40)[0]
    return [(lively, 34), (rest[0], 9), (rest[1][:3], 26), (rest[2][:1], 1)]


@functools.cache
def alone(architecture) -> list[list[int]]:
    return [oracle.greedy(slow_target(architecture), prompt, count) for prompt, count in several(architecture)]


def unbatched(architecture, arbiter, gamma=GAMMA):
    target, draft = pair(architecture)
    settings = Settings(**{**SHIPPED, "gamma": gamma})
    method = CoSpec(Session(target, "target"), ModelDrafter(Session(draft, "draft")), settings, arbiter, {})
    return [decode(method, *one) for one in several(architecture)]
