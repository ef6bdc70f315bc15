"""What the engine has to reach, compared with what was measured. Bars are for the bundled pair, on a CPU or CUDA."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from specbench.analysis import roofline
from specbench.base.stats import Interval
from specbench.engine.models import cost
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.choose import NAMES
from specbench.results import ceilings
from specbench_extras.bench.engines import CONTEXT, REFERENCE
from specbench_extras.bench.interleave import EngineTimes, speed_ratio
from specbench_extras.bench.peers import GENAI, TRANSFORMERS, VLLM

STATIC_GAIN = 1.3  # static over eager, vanilla
ASSISTED = 1.5  # SpS on its best runtime over transformers' assisted generation
SPECULATIVE = 1.1  # the same over OpenVINO GenAI's
OUTSIDE = 0.02  # the largest share of decode time outside forwards, on the reference
OUTSIDE_BEST = 0.05  # the same on a method's fastest runtime
GRAPH_GAIN = 3.0  # graph over eager, SpS of a small pair
GRAPH_GAIN_LARGE = 1.3  # the same, of 1B and 8B in bfloat16
OVER_LIMIT = 1.3  # the largest ratio of a vanilla forward to the time of its memory traffic


@dataclass(frozen=True)
class Claim:
    """A figure and its bar, a minimum if `at_least`, else a maximum; `why` the figure is missing if it is None."""

    what: str
    measured: Interval | None
    bar: float | None = None  # None: shown, not judged
    at_least: bool = True
    share: bool = False  # shown in percent
    why: str = ""
    by_run: tuple[float, ...] = ()  # the figure of each run alone, if there are several

    @property
    def verdict(self) -> str:
        """ "met" or "missed" by the figure itself, "close" if its interval holds the bar; empty without a bar."""
        if self.measured is None:
            return "not measured"
        if self.bar is None:
            return ""
        reached = self.measured.value >= self.bar if self.at_least else self.measured.value <= self.bar
        close = self.measured.low <= self.bar <= self.measured.high
        return ("met" if reached else "missed") + (", close" if close else "")


@dataclass(frozen=True)
class BenchTimes:
    """The times of every engine by name, and why runtimes and peers are missing."""

    by_name: Mapping[str, EngineTimes]
    missing: Mapping[str, str]

    def best(self, method: str) -> str:
        """Our runtime on which a method decodes the most tokens per second."""
        return max(
            (on for on in NAMES if f"{method}, {on}" in self.by_name),
            key=lambda on: self.by_name[f"{method}, {on}"].rate,
        )

    @property
    def runs(self) -> int:
        return len(next(iter(self.by_name.values())).seconds)

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(name.split(", ")[0] for name in self.by_name))

    def ratio(self, what: str, mine: str, base: str, bar: float | None = None) -> Claim:
        """The speed of one engine as a multiple of another's."""
        for name in (mine, base):
            if name not in self.by_name:
                by = name.split(", ")[1]
                return Claim(what, None, bar, why=self.missing.get(by, f"{by} was not requested"))
        one, other = self.by_name[mine], self.by_name[base]
        by_run = values(speed_ratio(*alone) for alone in zip(one.alone(), other.alone(), strict=True))
        return Claim(what, speed_ratio(one, other), bar, by_run=by_run)

    def against_reference(self) -> dict[str, Interval | None]:
        """The speed of every engine as a multiple of the reference runtime's with the same method."""
        method = {name: name.split(", ")[0] for name in self.by_name}
        return {
            name: speed_ratio(mine, self.by_name[f"{method[name]}, {REFERENCE}"]) for name, mine in self.by_name.items()
        }


def of_pair(times: BenchTimes, cuda: bool, judged: bool) -> list[Claim]:
    """The claims for a pair, next to peers; without `judged` no figure has a bar."""
    best = f"sps, {times.best('sps')}"
    if cuda:
        claims = [
            times.ratio("sps: graph over eager", "sps, graph", "sps, eager", GRAPH_GAIN),
            times.ratio("sps: best over transformers'", best, f"sps, {TRANSFORMERS}"),
            times.ratio("sps: best over vLLM's", best, f"sps, {VLLM}"),
            *(replace(claim, bar=None) for claim in outside(times)),
        ]
    else:
        claims = [
            times.ratio("vanilla: static over eager", "vanilla, static", "vanilla, eager", STATIC_GAIN),
            times.ratio("sps: best over transformers'", best, f"sps, {TRANSFORMERS}", ASSISTED),
            times.ratio("sps: best over GenAI's", best, f"sps, {GENAI}", SPECULATIVE),
            *outside(times),
        ]
    claims += gains(times)
    return claims if judged else [replace(claim, bar=None) for claim in claims]


def of_shapes(times: BenchTimes, cuda: bool, judged: bool) -> list[Claim]:
    """The claims for random models; `judged` if they have the sizes and the type that the bar is for."""
    fast = "graph" if cuda else "static"
    bar = GRAPH_GAIN_LARGE if cuda and judged else None
    return [
        times.ratio(f"sps: {fast} over eager", f"sps, {fast}", "sps, eager", bar),
        *(replace(claim, bar=None) for claim in outside(times)),
        *gains(times),
    ]


def over_limit(pair: Pair, forwards: Mapping[str, Mapping[str, Mapping[int, float]]], judged: bool) -> Claim:
    """The time of a vanilla forward of the target on its fastest runtime, over the least possible time.

    `forwards` are milliseconds by runtime, role and width, after CONTEXT tokens.
    """
    on = min(forwards, key=lambda name: forwards[name]["target"][1])
    what, bar = "vanilla forward, best over limit", OVER_LIMIT if judged else None
    known = ceilings.stored(pair.device, pair.models["target"].dtype)
    facts = cost.facts(pair.models["target"])
    if not known:
        why = "this machine was not measured; specbench profile --ceilings does that"
        return Claim(what, None, bar, at_least=False, why=why)
    if not facts:
        return Claim(what, None, bar, at_least=False, why="what a forward of the target must move is not known")
    least = roofline.limit(roofline.cost(facts, 1, CONTEXT), ceilings.read(known)).seconds
    return Claim(what, Interval(forwards[on]["target"][1] / 1000 / least, math.nan, math.nan), bar, at_least=False)


def outside(times: BenchTimes) -> list[Claim]:
    """The share of decode time outside forwards, on the reference and on each method's fastest runtime."""
    claims = []
    for method in times.methods:
        best = times.best(method)
        for on, bar in [(REFERENCE, OUTSIDE)] + [(best, OUTSIDE_BEST)] * (best != REFERENCE):
            mine = times.by_name[f"{method}, {on}"]
            by_run = values(run.outside for run in mine.alone())
            what = f"outside forwards: {method} {on}"
            claims.append(Claim(what, mine.outside, bar, at_least=False, share=True, by_run=by_run))
    return claims


def values(of_runs: Iterable[Interval | None]) -> tuple[float, ...]:
    """The figures of several runs alone; none of a single run, or where one is not known."""
    known = [one.value for one in of_runs if one]
    return tuple(known) if len(known) > 1 else ()


def gains(times: BenchTimes) -> list[Claim]:
    """What speculation gains, on the reference and with both methods on their best runtimes."""
    mine, base = (f"{method}, {times.best(method)}" for method in ("sps", "vanilla"))
    return [
        times.ratio("sps over vanilla, both eager", "sps, eager", "vanilla, eager"),
        times.ratio("sps over vanilla, each at best", mine, base),
    ]
