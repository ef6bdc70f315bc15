"""CoSpec on tiny models: random arbitrators, the decoder without a cache, and methods with any arbiter."""

import copy
import functools
import math

import naive_cospec as naive
import torch
from gates import DEVICE, GREEDY, lively_prompt, pair
from watched import Told

from specbench import config
from specbench.engine.drafters import ModelDrafter
from specbench.engine.session import Session
from specbench.methods.collaborative.cospec import CoSpec, Learned, Settings
from specbench.methods.collaborative.cospec_arbitrator import Adapter, load_own, new_arbitrator, own_parameters

SHIPPED = config.load_method("cospec").values
ADAPTER = Adapter(rank=3, alpha=7)
PROMPT, COUNT = 12, 30


@functools.cache
def arbitrator(architecture: str):
    """Random adapters and head over the draft, large enough to matter."""
    model = new_arbitrator(pair(architecture)[1], ADAPTER, seed=0)
    rng = torch.Generator().manual_seed(5)
    result = {}
    for name, own in sorted(own_parameters(model).items()):
        scale = 0.25 if "lora" in name else 2 * own.shape[-1] ** -0.5
        result[name] = scale * torch.randn(own.shape, generator=rng, dtype=torch.float64)
    load_own(model, result)
    return model


@functools.cache
def merged(architecture: str) -> naive.Merged:
    own = own_parameters(arbitrator(architecture))
    return naive.merge(pair(architecture)[1], own, ADAPTER.rank, ADAPTER.alpha)


@functools.cache
def slow(architecture: str) -> naive.Models:
    return naive.Models(*(copy.deepcopy(model).cpu() for model in pair(architecture)))


@functools.cache
def slow_target(architecture):
    return copy.deepcopy(pair(architecture)[0]).cpu()


@functools.cache
def prompt_of(architecture: str) -> list[int]:
    return lively_prompt(architecture, PROMPT, 40)[0]


class Counted(Told):
    """A watch that tells what the arbitrator was fed: (width, context) of each forward."""

    def arbitrator(self):
        return [(width, context) for model, width, context, *_ in self.forwards if model == "arbitrator"]


def learned(architecture, threshold, hybrid=True, watch=None, kind=Learned):
    return kind(Session(arbitrator(architecture), "arbitrator", watch, vocabulary=1), threshold, hybrid)


def cospec(architecture, gamma, arbiter, candidates="coupled"):
    target, draft = pair(architecture)
    settings = Settings(**{**SHIPPED, "gamma": gamma, "candidates": candidates})
    return CoSpec(Session(target, "target"), ModelDrafter(Session(draft, "draft")), settings, arbiter, {})


def some(method, prompt, count=COUNT, sampling=GREEDY, seed=0):
    """Whole rounds behind the prefill, until `count` tokens are there."""
    rng, length, results = torch.Generator(DEVICE).manual_seed(seed), 0, []
    for step in method.rounds(prompt, sampling, rng):
        length += len(step.tokens)
        results.append(step)
        if length >= count:
            return results[1:]


def middling(architecture, judge) -> float:
    """A threshold that is halfway among the probabilities that the mismatches of a text have."""
    values = []

    def begin(*block):
        values.append((judge(*block), block))
        return lambda i: True

    slow(architecture).rounds(prompt_of(architecture), COUNT, 4, begin)
    chances = [1 / (1 + math.exp(-x)) for row, (_, d, t) in values for x, a, b in zip(row, d, t, strict=True) if a != b]
    middle = len(chances) // 2
    return sum(sorted(chances)[middle - 1 : middle + 1]) / 2
