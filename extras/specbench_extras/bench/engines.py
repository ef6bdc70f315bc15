"""The engines that the bench times: our methods on our runtimes. Other projects' engines are in peers.py."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from specbench.config import MethodSpec, Setting, UserError, load_method, override
from specbench.engine.clock import Lap, Stopwatch
from specbench.engine.drafters import ModelDrafter
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.load import LLAMACPP
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes import choose
from specbench.engine.runtimes.types import Unsupported
from specbench.engine.session import Unwatched
from specbench.engine.types import Method, Sampling
from specbench.measure.prepare import build
from specbench.measure.sample import timed
from specbench.methods.chains.vanilla import Vanilla
from specbench_extras.bench.forced import Forced

NEW_TOKENS = 96
WIDTHS = (1, 2, 4, 5, 8, 16)
CONTEXT = 200
REFERENCE = "eager"  # the runtime whose texts and times the others are compared with
METHODS = ("vanilla", "sps", "csd")
LOSSLESS = ("vanilla", "sps")

Generate = Callable[[list[int]], list[int]]  # prompt to new tokens


@dataclass(frozen=True)
class Engine:
    """One way to decode a prompt. `by` is one of our runtimes, or a peer."""

    method: str
    by: str
    generate: Generate
    begin: Callable[[str], None] = lambda task: None  # called with each task before its first prompt
    laps: Callable[[], list[Lap]] | None = None  # of the last text, prefill first; None: not timed inside
    watched: bool = True  # False: our engine without the stopwatch, to measure its cost

    @property
    def name(self) -> str:
        return f"{self.method}, {self.by}{'' if self.watched else ', unwatched'}"


def runnable(
    pair: Pair, requested: list[str], too_large: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, Pair], dict[str, str]]:
    """The pair on each `requested` runtime (by default on all), the reference first; and why others are left out.

    `too_large` holds the reasons for runtimes that are not tried at all. Raises Unsupported (a UserError) if a
    requested runtime cannot run the pair here.
    """
    if choose.AUTO in requested:
        raise UserError("bench compares runtimes, and auto is one of them: name those, or leave --runtime out for all")
    if LLAMACPP in requested:
        raise UserError("bench compares texts with eager's, and llamacpp rounds otherwise; leave it out")
    pairs: dict[str, Pair] = {}
    left_out = dict(too_large)
    for name in dict.fromkeys((REFERENCE, *(requested or choose.NAMES))):
        if name in too_large or name == LLAMACPP:
            continue
        try:
            pairs[name] = replace(pair, runtime=choose.runtime(name, pair))
        except Unsupported as error:
            if name in requested:
                raise
            left_out[name] = str(error)
    return pairs, left_out


def ours(pair: Pair, gamma: int) -> list[Engine]:
    """Every method on the pair's runtime, and those of LOSSLESS again without the stopwatch."""
    watch, idle = Stopwatch(pair.device), Stopwatch(pair.device)
    watched = [(name, build(_spec(name, gamma), pair, watch)) for name in METHODS]
    bare = [(name, build(_spec(name, gamma), pair, Unwatched())) for name in LOSSLESS]
    return [_engine(pair, *each, watch) for each in watched] + [_engine(pair, *each, idle, False) for each in bare]


def synthetic(pair: Pair, gamma: int, rate: float) -> list[Engine]:
    """Vanilla, and SpS with random verdicts: each drafted token passes with probability `rate`."""
    watch = Stopwatch(pair.device)
    target, drafter = pair.session("target", watch), ModelDrafter(pair.session("draft", watch))
    methods: dict[str, Method] = {"vanilla": Vanilla(target), "sps": Forced(target, drafter, gamma, rate)}
    return [_engine(pair, name, method, watch) for name, method in methods.items()]


def _engine(pair: Pair, name: str, method: Method, watch: Stopwatch, watched: bool = True) -> Engine:
    rng = torch.Generator(pair.device).manual_seed(0)
    limits = Limits(NEW_TOKENS, pair.eos_ids)

    def generate(prompt: list[int]) -> list[int]:
        ending = Ending(limits, pair.detokenizer)
        timed(decode_text(method, prompt, Sampling(), rng, ending), watch)
        return ending.tokens

    return Engine(name, pair.runtime.name, generate, method.reset, watch.laps if watched else None, watched)


def _spec(name: str, gamma: int) -> MethodSpec:
    spec = load_method(name)
    return override(spec, {"gamma": Setting(value=gamma)}) if "gamma" in spec.settings else spec


def forward_times(pair: Pair, role: str, repeats: int = 30) -> dict[int, float]:
    """Milliseconds (median) of a forward of each width after CONTEXT tokens, on the pair's runtime."""
    watch = Stopwatch(pair.device)
    session = pair.session(role, watch)
    session.restart([7] * CONTEXT)
    for width in WIDTHS:  # let the runtime see each width once before it settles
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
