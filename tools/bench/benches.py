"""What the scripts of `make bench` share: prompts, methods and texts of bundled pairs, turns by lot, clocks inside."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from specbench.base import environment
from specbench.base.stats import Interval, Paired, speedup
from specbench.config import Setting, load_method, override, validated
from specbench.engine.clock import Lap, Stopwatch
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.models.pair import Pair
from specbench.engine.session import Unwatched
from specbench.engine.types import Method, Round, Sampling
from specbench.measure.prompts import encode
from specbench.methods import module
from specbench_extras.bench.prompts import FAMILIES, bundled_prompts

GREEDY = Sampling()
Generate = Callable[[list[int], int], list[int]]  # a prompt and how many tokens; the new tokens


def prompts(pair: Pair, documents: int) -> list[list[int]]:
    """The first bundled documents of each family."""
    return [encode(pair, prompt) for family in FAMILIES for prompt in bundled_prompts(family, documents)]


def built(name: str, pair: Pair, watch: Any = None, **changes: Any) -> Method:
    """A method with its shipped settings but for some changes."""
    spec = override(load_method(name), {key: Setting(value=value) for key, value in changes.items()})
    settings = validated(module(spec.method).Settings, spec.values, name)
    return module(spec.method).build(settings, pair, watch or Unwatched())


class Text(NamedTuple):
    tokens: list[int]
    rounds: list[Round]
    laps: list[Lap]  # of a watched method: of its rounds, the first of which is the prefill

    @property
    def decode_seconds(self) -> float:
        return sum(lap.seconds for lap in self.laps[1:])


def decode(
    method: Method,
    pair: Pair,
    prompt: list[int],
    watch: Stopwatch | None = None,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    count: int = 96,
) -> Text:
    ending = Ending(Limits(count, pair.eos_ids), pair.detokenizer)
    rng = torch.Generator(pair.device).manual_seed(seed)
    rounds = []
    if watch:
        watch.start()
    for one in until_end(method.rounds(prompt, sampling, rng), ending):
        rounds.append(one)
        if watch:
            watch.lap()
    return Text(ending.tokens, rounds, watch.laps() if watch else [])


def by_turns(names: Sequence[str], turns: int) -> Iterator[list[str]]:
    """The names in an order that is drawn again for each turn."""
    order = random.Random(0)
    for _ in range(turns):
        yield order.sample(list(names), len(names))


class Raced(NamedTuple):
    """Decode seconds and tokens of each prompt by method, and all texts [prompt]."""

    seconds: dict[str, np.ndarray]
    tokens: dict[str, np.ndarray]
    texts: dict[str, list[Text]]

    def print_speedups(self, indent: str, *pairs: tuple[str, str]) -> dict[tuple[str, str], Interval | None]:
        """Speedups of the first over the second of each pair."""
        result = {}
        for mine, base in pairs:
            times = Paired(self.seconds[base], self.tokens[base], self.seconds[mine], self.tokens[mine])
            result[mine, base] = one = speedup(times)
            facts = f"{mine} over {base}: {one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" if one else f"{mine}: -"
            print(indent + facts)
        return result


def race(
    methods: dict[str, Method],
    pair: Pair,
    prompts: list[list[int]],
    watch: Stopwatch,
    sampling: Sampling = GREEDY,
    prefill: int = 0,
) -> Raced:
    """Decode every prompt by every method, by turns; of each text `prefill` tokens do not count."""
    seconds, tokens = ({name: np.zeros(len(prompts)) for name in methods} for _ in range(2))
    texts: dict[str, list[Text]] = {name: [] for name in methods}
    for at, names in enumerate(by_turns(list(methods), len(prompts))):
        for name in names:
            texts[name].append(decode(methods[name], pair, prompts[at], watch, sampling, at))
            seconds[name][at] = texts[name][at].decode_seconds
            tokens[name][at] = len(texts[name][at].tokens) - prefill
    return Raced(seconds, tokens, texts)


class Called(NamedTuple):
    """Seconds and tokens of each prompt by engine, prefill left out, and all texts [prompt]."""

    seconds: dict[Any, np.ndarray]
    tokens: dict[Any, np.ndarray]
    texts: dict[Any, list[list[int]]]

    def speedup(self, mine: Any, base: Any) -> Interval | None:
        """Tokens a second over a base's, with a 95 % interval over prompts."""
        return speedup(Paired(self.seconds[base], self.tokens[base], self.seconds[mine], self.tokens[mine]))


def race_calls(engines: Mapping[Any, Generate], prompts: list[list[int]], new: int) -> Called:
    """Have every engine answer every prompt, by turns: of each, a text less a text of one token.

    With one thread seconds are those of the processor, which other processes disturb less.
    """
    clock = process_time if torch.get_num_threads() == 1 else perf_counter
    seconds, tokens = ({each: np.zeros(len(prompts)) for each in engines} for _ in range(2))
    texts: dict[Any, list[list[int]]] = {each: [] for each in engines}
    by_name = {repr(each): each for each in engines}
    for at, turn in enumerate(by_turns(list(by_name), len(prompts))):
        for each in (by_name[name] for name in turn):
            began = clock()
            engines[each](prompts[at], 1)
            first = clock()
            texts[each].append(engines[each](prompts[at], new))
            seconds[each][at] = clock() - first - (first - began)
            tokens[each][at] = max(len(texts[each][at]) - 1, 1)
    return Called(seconds, tokens, texts)


def store(table: pd.DataFrame, out: str, pair: Pair, documents: int, **facts: Any) -> None:
    """Write a table to OUT.csv, and to OUT.json how it was taken: the command, with OUT among the stored figures."""
    table.to_csv(f"{out}.csv", index=False)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    script, asked = Path(sys.argv[0]).name, " ".join(sys.argv[1:-1])
    facts = {
        "command": f"python tools/bench/{script} {asked} results/reference/{Path(out).name}",
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "pair": pair.name,
        "documents": documents,
        **facts,
        "machine": environment.describe(pair.device),
    }
    Path(f"{out}.json").write_text(json.dumps(facts, indent=1) + "\n")


@contextmanager
def clocked(*places: tuple[Any, str, list[float]]) -> Iterator[None]:
    """Have functions and methods note the seconds of each call, until the end; the clock itself is counted too."""
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for (owner, name, function), (_, _, result) in zip(kept, places, strict=True):
        _put(owner, name, _noting(function, result))
    try:
        yield
    finally:
        for owner, name, function in kept:
            _put(owner, name, function)


def _noting(function: Any, result: list[float]) -> Any:
    def called(*given: Any, **named: Any) -> Any:
        began = perf_counter()
        value = function(*given, **named)
        result.append(perf_counter() - began)
        return value

    return called


def _put(owner: Any, name: str, function: Any) -> None:
    """Set an attribute, of frozen objects too."""
    (setattr if isinstance(owner, type | ModuleType) else object.__setattr__)(owner, name, function)
