"""What the bench times: this engine's methods on its runtimes. Those of others are in peers.py."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from specbench.bench.forced import Forced
from specbench.config import MethodSpec, Setting, UserError, load_method, override
from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.generate import Ending, Limits, until_end
from specbench.decoding.session import Unwatched
from specbench.decoding.types import Method, Sampling
from specbench.measure import Lap, Stopwatch
from specbench.methods.vanilla import Vanilla
from specbench.models import Pair
from specbench.ready import build
from specbench.runtimes import choose
from specbench.runtimes.types import Unsupported
from specbench.sample import timed

NEW_TOKENS = 96
WIDTHS = (1, 2, 4, 5, 8, 16)
CONTEXT = 200
REFERENCE = "eager"  # whose texts and times the others are compared with
METHODS = ("vanilla", "sps", "csd")
LOSSLESS = ("vanilla", "sps")

Generate = Callable[[list[int]], list[int]]  # prompt to new tokens


@dataclass(frozen=True)
class Engine:
    """One way to decode a prompt. `by` is a runtime of ours, or a peer."""

    method: str
    by: str
    generate: Generate
    begin: Callable[[str], None] = lambda task: None  # told of each task in front of its first prompt
    laps: Callable[[], list[Lap]] | None = None  # of the last text, prefill first; None: nobody watched
    watched: bool = True  # False: of ours, to see what watching costs

    @property
    def name(self) -> str:
        return f"{self.method}, {self.by}{'' if self.watched else ', unwatched'}"


def runnable(
    pair: Pair, asked: list[str], too_large: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, Pair], dict[str, str]]:
    """The pair on each runtime that is asked for (none: on all), the reference first; and why others are left out.

    `too_large` says that of those that are not even tried. Raises Unsupported (a UserError) for one that was asked for
    and cannot run the pair here.
    """
    if choose.AUTO in asked:
        raise UserError("bench compares runtimes, and auto is one of them: name those, or leave --runtime out for all")
    found: dict[str, Pair] = {}
    left_out = dict(too_large)
    for name in dict.fromkeys((REFERENCE, *(asked or choose.NAMES))):
        if name in too_large:
            continue
        try:
            found[name] = replace(pair, runtime=choose.runtime(name, pair))
        except Unsupported as error:
            if name in asked:
                raise
            left_out[name] = str(error)
    return found, left_out


def ours(pair: Pair, gamma: int) -> list[Engine]:
    """Every method on the pair's runtime, and those of LOSSLESS once more with nobody watching."""
    watch, idle = Stopwatch(pair.device), Stopwatch(pair.device)
    watched = [(name, build(_spec(name, gamma), pair, watch)) for name in METHODS]
    bare = [(name, build(_spec(name, gamma), pair, Unwatched())) for name in LOSSLESS]
    return [_engine(pair, *one, watch) for one in watched] + [_engine(pair, *one, idle, False) for one in bare]


def synthetic(pair: Pair, gamma: int, rate: float) -> list[Engine]:
    """Vanilla, and SpS whose verdicts are drawn: each drafted token passes with probability `rate`."""
    watch = Stopwatch(pair.device)
    target, drafter = pair.session("target", watch), ModelDrafter(pair.session("draft", watch))
    methods: dict[str, Method] = {"vanilla": Vanilla(target), "sps": Forced(target, drafter, gamma, rate)}
    return [_engine(pair, name, method, watch) for name, method in methods.items()]


def _engine(pair: Pair, name: str, method: Method, watch: Stopwatch, watched: bool = True) -> Engine:
    rng = torch.Generator(pair.device).manual_seed(0)
    limits = Limits(NEW_TOKENS, pair.eos_ids)

    def generate(prompt: list[int]) -> list[int]:
        ending = Ending(limits, pair.detokenizer)
        timed(until_end(method.rounds(prompt, Sampling(), rng), ending), watch)
        return ending.tokens

    return Engine(name, pair.runtime.name, generate, method.reset, watch.laps if watched else None, watched)


def _spec(name: str, gamma: int) -> MethodSpec:
    spec = load_method(name)
    return override(spec, {"gamma": Setting(value=gamma)}) if "gamma" in spec.settings else spec


def forward_times(pair: Pair, role: str, repeats: int = 30) -> dict[int, float]:
    """Milliseconds (median) of a forward of each width behind CONTEXT tokens, on the pair's runtime."""
    watch = Stopwatch(pair.device)
    session = pair.session(role, watch)
    session.restart([7] * CONTEXT)
    for width in WIDTHS:  # met once, then made ready
        session.forward([7] * width)
        session.truncate(CONTEXT)
    pair.runtime.settle()
    times = {}
    for width in WIDTHS:
        watch.start()
        for _ in range(repeats):
            session.forward([7] * width)
            session.truncate(CONTEXT)
        watch.lap()
        times[width] = 1000 * statistics.median(f.seconds for f in watch.laps()[0].forwards)
    return times
