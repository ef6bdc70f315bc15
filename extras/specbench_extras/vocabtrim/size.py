"""How many tokens a draft should offer: an exact scan over all sizes, by what they cover and what forwards take here.

A draft of the k most frequent tokens can only be right where the target's token is among them. With coverage c(k), a
draft that is right wherever it can be gives 1 + c + … + c^γ tokens a round, which takes one target forward over γ + 1
tokens and γ draft forwards; a draft forward takes a + b·k seconds, fitted to three measured sizes. The size with the
most tokens a second is the best one. (The trade of arXiv 2603.05210, which searches by TPE; k is one number, so a scan
is exact. The form of the objective is our inference.)
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from specbench.base.stats import Floats
from specbench.engine.clock import Stopwatch
from specbench.engine.models.draft_output import trimmed
from specbench.engine.models.pair import Pair

SHARES = (1.0, 0.5, 0.125)  # of the vocabulary: the sizes whose draft forwards are measured
CONTEXT, FORWARDS, TURNS = 64, 20, 3  # tokens before a measured forward; forwards of each size in each of so many turns


@dataclass(frozen=True)
class Costs:
    """Seconds of forwards on this machine."""

    target: float  # over γ + 1 tokens
    body: float  # of a draft forward without its output layer
    row: float  # of each token that it offers


def best_size(coverage: Floats, costs: Costs, gamma: int) -> int:
    """The size with the most tokens a second; `coverage` [V] is that of the 1, 2, … V most frequent tokens."""
    return int(np.argmax(speeds(coverage, costs, gamma))) + 1  # of equal ones the smallest


def speeds(coverage: Floats, costs: Costs, gamma: int) -> Floats:
    """Tokens a second [V] of each size, at most."""
    tokens = (coverage[:, None] ** np.arange(gamma + 1)).sum(1)
    sizes = np.arange(1, len(coverage) + 1)
    return tokens / (costs.target + gamma * (costs.body + costs.row * sizes))


def measured(pair: Pair, order: NDArray[np.int64], gamma: int) -> Costs:
    """Measure forwards of the pair's models; `order` has its tokens by falling frequency.

    Raises ValueError if the draft's output layer cannot be changed.
    """
    sizes = [max(1, round(share * len(order))) for share in SHARES]
    drafts = [trimmed(pair.models["draft"], torch.from_numpy(np.sort(order[:size]))) for size in sizes]
    seconds: list[list[float]] = [[] for _ in sizes]
    target: list[float] = []
    for _ in range(TURNS):
        for draft, times in zip(drafts, seconds, strict=True):
            times += forwards(pair, "draft", draft, 1)
        target += forwards(pair, "target", pair.models["target"], gamma + 1)
    body, row = fitted(sizes, [statistics.median(times) for times in seconds])
    return Costs(statistics.median(target), body, row)


def fitted(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """a and b of seconds = a + b·size by least squares; noise makes neither negative."""
    row, body = np.polyfit(np.array(sizes, float), np.array(seconds), 1)
    return max(0.0, float(body)), max(0.0, float(row))


def forwards(pair: Pair, role: str, model: PreTrainedModel, width: int) -> list[float]:
    """Seconds of some forwards of so many tokens after CONTEXT others."""
    watch = Stopwatch(pair.device)
    session = pair.session(role, watch, model)
    token = next(iter(pair.eos_ids), 0)
    session.forward([token] * CONTEXT)
    watch.start()
    for _ in range(FORWARDS):
        session.forward([token] * width)
        watch.lap()
        session.truncate(CONTEXT)
    return [lap.time(role) for lap in watch.laps()]
