"""The law of sampled texts: many draws of a method, held against the exact enumeration of what it must follow."""

import copy
import functools
from typing import NamedTuple

import numpy as np
import oracle
import torch
from gates import DEVICE
from transformers import PreTrainedModel

from specbench.engine.types import Method, Sampling

V = 5  # tokens of a target whose law is enumerated


@functools.cache
def small_target() -> PreTrainedModel:
    """A target of one layer, for methods with heads."""
    return oracle.tiny("llama", seed=1, vocab=V, num_hidden_layers=1).to(DEVICE)


class Texts(NamedTuple):
    counts: np.ndarray  # [V, …, V]: how often each text of so many tokens was drawn
    accepted: int  # drafted tokens, rescued ones among them
    rejected: int


def texts(method: Method, vocabulary: int, prompt: list[int], count: int, sampling: Sampling, draws: int) -> Texts:
    """`draws` texts of `count` tokens after a prompt."""
    counts, rng = np.zeros((vocabulary,) * count), torch.Generator(DEVICE).manual_seed(0)
    accepted = rejected = 0
    for _ in range(draws):
        tokens: list[int] = []
        for step in method.rounds(prompt, sampling, rng):
            tokens += step.tokens
            if step.verdict:
                accepted += step.accepted
                rejected += step.verdict.decisions().count("rejected")
            if len(tokens) >= count:
                break
        counts[tuple(tokens[:count])] += 1
    return Texts(counts, accepted, rejected)


class Fit(NamedTuple):
    p: float  # of the texts under the target's law
    accepted: int
    rejected: int


def fit(method: Method, target: PreTrainedModel, prompt: list[int], count: int, sampling: Sampling, draws: int) -> Fit:
    """How well a method's texts follow the target's own law."""
    expected = oracle.text_distribution(
        copy.deepcopy(target).cpu(), prompt, count, sampling.temperature, sampling.top_k, sampling.top_p
    )
    drawn = texts(method, expected.shape[0], prompt, count, sampling, draws)
    return Fit(oracle.chi_square(drawn.counts, expected), drawn.accepted, drawn.rejected)


def two_tokens(method: Method, target: PreTrainedModel, sampling: Sampling, draws: int = 3000) -> float:
    """p-value of the first two tokens after a prompt, under the target's law."""
    return fit(method, target, [1, 5, 2], 2, sampling, draws).p
