"""Slow second implementations of prompt lookup, of AASD and of the replay of texts, from their descriptions alone.

Nothing here imports the package under test. There is no index: each look-up reads the whole text; and no cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import oracle
import torch


class Rule(NamedTuple):
    """How a continuation is looked up."""

    ngram: int
    shortest: int
    gamma: int
    match: str  # first, last
    whole: bool


def continuation(text: list[int], end: list[int], rule: Rule) -> tuple[int, list[int]] | None:
    """Where, and which tokens follow in `text`, the longest n-gram that `end` ends with; None: it is nowhere.

    What follows has γ tokens; with `whole` exactly, else at least one.
    """
    for n in range(rule.ngram, rule.shortest - 1, -1):
        if n > len(end):
            continue
        wanted = end[len(end) - n :]
        least = rule.gamma if rule.whole else 1
        places = [at + n for at in range(len(text)) if text[at : at + n] == wanted and len(text) - (at + n) >= least]
        if places:
            start = places[0] if rule.match == "first" else places[-1]
            return start, text[start : start + rule.gamma]
    return None


def drafts(contexts: Iterator[list[int]] | list[list[int]], rule: Rule, reuse: bool) -> Iterator[list[int]]:
    """The draft behind each of the contexts of one text, in their order."""
    last: list[int] = []
    for context in contexts:
        tail = continuation(context, context, rule)
        last = tail[1] if tail else last if reuse else []
        yield last


def accepted(paths: list[list[int]], text: list[int]) -> int:
    """The length of the longest of some paths' prefixes that `text` begins with."""
    return max((n for path in paths for n in range(1, len(path) + 1) if path[:n] == text[:n]), default=0)


class Position(NamedTuple):
    """What a replayed text says of the place behind `at` generated tokens."""

    at: int
    drafted: int
    accepted: int


Paths = Callable[[list[int]], list[list[int]]]  # context -> all paths of its draft, from the first level on


def positions(prompt: list[int], generated: list[int], paths: Paths) -> list[Position]:
    """Every position behind the first generated token."""
    results = []
    for at in range(1, len(generated)):
        drafted = paths(prompt + generated[:at])
        nodes = {tuple(path[:n]) for path in drafted for n in range(1, len(path) + 1)}
        results.append(Position(at, len(nodes), accepted(drafted, generated[at:])))
    return results


def rounds(prompt: list[int], generated: list[int], paths: Paths) -> list[tuple[int, int]]:
    """Where each round of greedy decoding begins, and how many tokens it commits; cut at the text's end."""
    at, results = 1, []
    while at < len(generated):
        stood = accepted(paths(prompt + generated[:at]), generated[at:])
        count = len(generated[at : at + stood + 1])
        results.append((at, count))
        at += count
    return results


class Aligned(NamedTuple):
    """AASD's settings next to those of its look-up."""

    candidates: int
    alpha: float
    beta: float


def threshold(p: list[float], alpha: float, beta: float) -> float:
    """The least probability that stands."""
    entropy = -math.fsum(x * math.log(x) for x in p if x > 0)
    return min(beta - alpha * entropy, max(p))


class Aside(NamedTuple):
    """A round of AASD: the levels of its tree, what of them stands, and which levels of that are rescued."""

    levels: list[list[int]]
    path: list[int]
    rescued: list[int]


def aside(model, prompt: list[int], context: list[int], rule: Rule, aligned: Aligned) -> Aside:
    """The draft of AASD behind a context, and what of it stands; greedily, what is no argmax is a rescue."""
    tail = continuation(prompt, context, rule)
    start, trunk = tail if tail else (0, [])
    levels = []
    for place, token in enumerate(trunk, start):
        logits = oracle.next_logits(model, prompt[:place]).tolist()
        likely = sorted(range(len(logits)), key=lambda i: -logits[i])[: aligned.candidates]
        levels.append([token] + [other for other in likely if other != token])
    path, rescued = [], []
    for trunk_token, *others in levels:
        logits = oracle.next_logits(model, context + path)
        p = oracle.warp(logits, 1.0).tolist()
        standing = [x for x in (trunk_token, *others) if p[x] >= threshold(p, aligned.alpha, aligned.beta)]
        if not standing:
            break
        best = max(standing, key=lambda x: p[x])
        if best != oracle.best(logits):
            rescued.append(len(path))
        path.append(best)
        if best != trunk_token:
            break
    return Aside(levels, path, rescued)


def repetitive(seed: int, attention: float, vocab: int = 24):
    """A model whose next token hangs on the last one more than on those before, so that texts repeat themselves."""
    model = oracle.tiny("llama", seed=seed, vocab=vocab)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(attention)
    return model
