"""DEL's rounds once more, from the paper: no cache, whole forwards, and sums over all rounds so far.

Nothing here imports the package under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import oracle

Said = Callable[[int, list[int]], list[float]]  # an exit (0, 1, …) and a text -> the probabilities that it gives
Shadow = tuple[list[bool], list[float]]  # of each exit: whether its token is the target's, and its probability


def rounds(
    said: Said,
    target: Callable[[list[int]], list[float]],
    exits: list[int],
    layers: int,
    prompt: list[int],
    first: int,
    count: int,
    gamma: int,
    memory: float,
    counted: int,
    bound: str,
) -> tuple[list[oracle.Round], list[tuple[int, int]]]:
    """`count` greedy rounds after `first`, and the exit and length that were chosen for each."""

    def shadow(text: list[int]) -> Shadow:
        rows = [said(index, text) for index in range(len(exits))]
        wanted = oracle.best(target(text))
        return [row.index(max(row)) == wanted for row in rows], [max(row) for row in rows]

    text, done, chosen = [*prompt, first], [], []
    groups: list[list[Shadow]] = []
    pending = [shadow(prompt[: end + 1]) for end in range(max(0, len(prompt) - counted), len(prompt))]
    choice = (0, 1)
    for _ in range(count):
        at, length = choice
        chosen.append(choice)
        sure: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for weight, right, chance in weighted(groups, memory):
            sure[right[at]].append((weight, chance[at]))
        threshold = -math.inf
        if bound != "tpl" and all(sure.values()):
            threshold = sum(sum(w * c for w, c in kind) / sum(w for w, _ in kind) for kind in sure.values()) / 2
        most, drafted = gamma if bound == "confidence" else min(gamma, length), []
        while len(drafted) < most:
            row = said(at, text + drafted)
            drafted.append(row.index(max(row)))
            if max(row) < threshold:
                break
        rows = [target(text + drafted[:end]) for end in range(len(drafted) + 1)]
        one = oracle.sps_scan(rows, drafted)
        groups.append(pending + [shadow(text + drafted[:end]) for end in range(one.accepted + 1)])
        pending = []
        worths, known = {}, weighted(groups, memory)
        for index, before in enumerate(exits):
            share = sum(weight for weight, right, _ in known if right[index]) / sum(weight for weight, _, _ in known)
            for size in range(gamma + 1):
                tokens = sum(share**power for power in range(size + 1))
                worths[index, size] = tokens / (layers - before + (size + 1) * before)
        choice = max(worths, key=lambda pair: worths[pair])
        done.append(one)
        text += oracle.committed([one])
    return done, chosen


def weighted(groups: list[list[Shadow]], memory: float) -> list[tuple[float, list[bool], list[float]]]:
    """The shadow tokens of all rounds so far, each round's with a weight that falls with its age."""
    return [(memory**age, *shadow) for age, group in enumerate(reversed(groups)) for shadow in group]
