"""Decode every prompt by every engine, one after the other in an order drawn anew, and keep the clock's readings."""

import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specbench.bench.engines import Engine
from specbench.console import progress
from specbench.measure import now
from specbench.stats import Floats, Interval, Paired, speedup

Prompt = tuple[str, list[int]]  # its task, its ids
See = Callable[[list[int], dict[str, list[int]]], None]  # a prompt, and the tokens of every engine by name


@dataclass(frozen=True)
class Taken:
    """What an engine took for each text, arrays [documents]; all but the first two of watched engines only.

    `inside` and `decode` leave the prefill out.
    """

    seconds: Floats
    tokens: Floats
    inside: Floats  # seconds in forwards
    decode: Floats  # seconds
    rounds: Floats

    @property
    def rate(self) -> float:
        """Tokens per second, prefill included."""
        return float(self.tokens.sum() / self.seconds.sum())

    @property
    def tau(self) -> float:
        """Tokens per round behind the prefill, which brings one."""
        return float((self.tokens - 1).sum() / self.rounds.sum())

    @property
    def outside(self) -> Interval | None:
        """The share of decode time outside forwards, with a bootstrap over documents; None if nobody watched."""
        ones = np.ones_like(self.decode)
        inside = speedup(Paired(self.inside, ones, self.decode, ones))
        return Interval(1 - inside.value, 1 - inside.high, 1 - inside.low) if inside else None


def over(mine: Taken, base: Taken) -> Interval | None:
    """How often `mine` is as fast as `base`, in tokens per second, prefill included."""
    return speedup(Paired(base.seconds, base.tokens, mine.seconds, mine.tokens))


def interleave(
    engines: Sequence[Engine],
    prompts: Sequence[Prompt],
    device: torch.device,
    see: See,
    between: Callable[[], None] = lambda: None,
) -> dict[str, Taken]:
    """Time every engine on every prompt; `see` is shown the texts of each prompt. All must have been warmed up.

    What runtimes put off until nothing is timed is done `between` prompts.
    """
    taken = {one.name: Taken(*(np.zeros(len(prompts)) for _ in range(5))) for one in engines}
    order = random.Random(0)
    task = None
    gc.collect()
    gc.freeze()
    with progress("bench", len(prompts)) as advance:
        for at, (of, prompt) in enumerate(prompts):
            texts = {}
            for engine in order.sample(engines, len(engines)):
                if of != task:
                    engine.begin(of)
                _wait(device)
                began = now()
                text = engine.generate(prompt)
                _wait(device)
                found = taken[engine.name]
                found.seconds[at], found.tokens[at] = now() - began, len(text)
                texts[engine.name] = text
                if engine.laps:
                    laps = engine.laps()[1:]
                    found.inside[at] = sum(lap.busy for lap in laps)
                    found.decode[at] = sum(lap.seconds for lap in laps)
                    found.rounds[at] = len(laps)
            task = of
            see(prompt, texts)
            between()
            advance(1)
    return taken


def warm_up(engines: Sequence[Engine], prompt: list[int]) -> None:
    """What is done once only (captures, compilations, first allocations) is done before the clock runs."""
    with progress("warm up", len(engines)) as advance:
        for engine in engines:
            engine.generate(prompt)
            advance(1)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
