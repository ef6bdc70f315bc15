"""Decode every prompt with every engine, in a random order for each prompt, and keep the times."""

import gc
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specbench.base.console import progress
from specbench.base.stats import Floats, Interval, Paired, pooled_rate, speedup
from specbench.engine.clock import now
from specbench_extras.bench.engines import Engine

Prompt = tuple[str, list[int]]  # its task, its ids
See = Callable[[list[int], dict[str, list[int]]], None]  # takes a prompt and the tokens of every engine by name


@dataclass(frozen=True)
class EngineTimes:
    """What an engine took for each text, arrays [runs, documents]; unwatched engines have `seconds` and `tokens` only.

    `inside` and `decode` do not include the prefill.
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
        """Tokens per round after the prefill, which gives one token."""
        return float((self.tokens - 1).sum() / self.rounds.sum())

    @property
    def outside(self) -> Interval | None:
        """The share of decode time outside forwards, with an interval; None for unwatched engines."""
        inside = pooled_rate(self.inside, self.decode)
        return Interval(1 - inside.value, 1 - inside.high, 1 - inside.low) if inside else None

    def alone(self) -> list["EngineTimes"]:
        """Each run by itself."""
        return [EngineTimes(*(array[[run]] for array in vars(self).values())) for run in range(len(self.seconds))]


def speed_ratio(mine: EngineTimes, base: EngineTimes) -> Interval | None:
    """The speed of `mine` as a multiple of `base`, in tokens per second, prefill included."""
    return speedup(Paired(base.seconds, base.tokens, mine.seconds, mine.tokens))


def interleave(
    engines: Sequence[Engine],
    prompts: Sequence[Prompt],
    device: torch.device,
    see: See,
    between: Callable[[], None] = lambda: None,
    runs: int = 1,
) -> dict[str, EngineTimes]:
    """Time every engine on every prompt, and pass the texts of each prompt to `see`. Engines must be warm.

    All prompts are decoded `runs` times, one pass after another; the order of the engines is drawn again for each text.
    `between` is called between prompts, for work that runtimes put off until nothing is timed.
    """
    times = {engine.name: EngineTimes(*(np.zeros((runs, len(prompts))) for _ in range(5))) for engine in engines}
    order = random.Random(0)
    task: tuple[int, str] | None = None
    gc.collect()
    gc.freeze()
    with progress("bench", runs * len(prompts)) as advance:
        for run, (at, (name, prompt)) in itertools.product(range(runs), enumerate(prompts)):
            texts = {}
            for engine in order.sample(engines, len(engines)):
                if task != (run, name):
                    engine.begin(name)
                _wait(device)
                start = now()
                text = engine.generate(prompt)
                _wait(device)
                row = times[engine.name]
                row.seconds[run, at], row.tokens[run, at] = now() - start, len(text)
                texts[engine.name] = text
                if engine.laps:
                    laps = engine.laps()[1:]
                    row.inside[run, at] = sum(lap.busy for lap in laps)
                    row.decode[run, at] = sum(lap.seconds for lap in laps)
                    row.rounds[run, at] = len(laps)
            task = run, name
            see(prompt, texts)
            between()
            advance(1)
    return times


def warm_up(engines: Sequence[Engine], prompt: list[int]) -> None:
    """Decode once with each engine, so that captures, compilations and first allocations are not timed."""
    with progress("warm up", len(engines)) as advance:
        for engine in engines:
            engine.generate(prompt)
            advance(1)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
