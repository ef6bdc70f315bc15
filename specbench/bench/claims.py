"""What the engine has to reach, held against what was measured. Bars are for the bundled pair, on a CPU or CUDA."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from specbench import ceilings, roofline
from specbench.bench.engines import CONTEXT, REFERENCE
from specbench.bench.interleave import Taken, over
from specbench.bench.peers import GENAI, TRANSFORMERS, VLLM
from specbench.models import Pair
from specbench.runtimes.choose import NAMES
from specbench.stats import Interval

STATIC_GAIN = 1.3  # static over eager, vanilla
ASSISTED = 1.5  # SpS on its best runtime over transformers' assisted generation
SPECULATIVE = 0.75  # the same over OpenVINO GenAI's
OUTSIDE = 0.02  # most of decode time outside forwards, on the reference
OUTSIDE_BEST = 0.05  # the same on a method's fastest runtime
GRAPH_GAIN = 3.0  # graph over eager, SpS of a small pair
GRAPH_GAIN_LARGE = 1.3  # the same, of 1B and 8B in bfloat16
OVER_LIMIT = 1.3  # most of a vanilla forward over what its memory traffic takes


@dataclass(frozen=True)
class Claim:
    """A figure and its bar: at least that much (`at_least`), or at most. Without a figure, `why` it is not there."""

    what: str
    found: Interval | None
    bar: float | None = None  # None: told, not judged
    at_least: bool = True
    share: bool = False  # told in percent
    why: str = ""

    @property
    def verdict(self) -> str:
        """met or missed by the figure itself; close where its interval holds the bar; empty without a bar."""
        if self.found is None:
            return "not measured"
        if self.bar is None:
            return ""
        reached = self.found.value >= self.bar if self.at_least else self.found.value <= self.bar
        close = self.found.low <= self.bar <= self.found.high
        return ("met" if reached else "missed") + (", close" if close else "")


@dataclass(frozen=True)
class Took:
    """What every engine took, by its name, and why runtimes and peers are missing."""

    by_name: Mapping[str, Taken]
    missing: Mapping[str, str]

    def best(self, method: str) -> str:
        """Our runtime on which a method decodes most tokens per second."""
        return max(
            (on for on in NAMES if f"{method}, {on}" in self.by_name),
            key=lambda on: self.by_name[f"{method}, {on}"].rate,
        )

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(name.split(", ")[0] for name in self.by_name))

    def ratio(self, what: str, mine: str, base: str, bar: float | None = None) -> Claim:
        """How often one engine is as fast as another."""
        for name in (mine, base):
            if name not in self.by_name:
                by = name.split(", ")[1]
                return Claim(what, None, bar, why=self.missing.get(by, f"{by} was not asked for"))
        return Claim(what, over(self.by_name[mine], self.by_name[base]), bar)

    def against_reference(self) -> dict[str, Interval | None]:
        """Every engine over the reference runtime's with the same method."""
        method = {name: name.split(", ")[0] for name in self.by_name}
        return {name: over(one, self.by_name[f"{method[name]}, {REFERENCE}"]) for name, one in self.by_name.items()}


def of_pair(took: Took, cuda: bool, judged: bool) -> list[Claim]:
    """Of a pair, beside peers; without `judged` no figure has a bar."""
    best = f"sps, {took.best('sps')}"
    if cuda:
        found = [
            took.ratio("sps: graph over eager", "sps, graph", "sps, eager", GRAPH_GAIN),
            took.ratio("sps: best over transformers'", best, f"sps, {TRANSFORMERS}"),
            took.ratio("sps: best over vLLM's", best, f"sps, {VLLM}"),
            *(replace(one, bar=None) for one in outside(took)),
        ]
    else:
        found = [
            took.ratio("vanilla: static over eager", "vanilla, static", "vanilla, eager", STATIC_GAIN),
            took.ratio("sps: best over transformers'", best, f"sps, {TRANSFORMERS}", ASSISTED),
            took.ratio("sps: best over GenAI's", best, f"sps, {GENAI}", SPECULATIVE),
            *outside(took),
        ]
    found += gains(took)
    return found if judged else [replace(one, bar=None) for one in found]


def of_shapes(took: Took, cuda: bool, judged: bool) -> list[Claim]:
    """Of random models; `judged` where they have the sizes and the type that the bar is for."""
    fast = "graph" if cuda else "static"
    bar = GRAPH_GAIN_LARGE if cuda and judged else None
    return [
        took.ratio(f"sps: {fast} over eager", f"sps, {fast}", "sps, eager", bar),
        *(replace(one, bar=None) for one in outside(took)),
        *gains(took),
    ]


def over_limit(pair: Pair, forwards: Mapping[str, Mapping[str, Mapping[int, float]]], judged: bool) -> Claim:
    """A vanilla forward of the target, on the runtime where it is fastest, over the least time that it can take.

    `forwards` are milliseconds by runtime, role and width, behind CONTEXT tokens.
    """
    on = min(forwards, key=lambda name: forwards[name]["target"][1])
    what, bar = "vanilla forward, best over limit", OVER_LIMIT if judged else None
    told = ceilings.known(pair.device, pair.models["target"].dtype)
    facts = roofline.facts(pair.models["target"])
    if not told:
        why = "this machine was not measured; specbench profile --ceilings does that"
        return Claim(what, None, bar, at_least=False, why=why)
    if not facts:
        return Claim(what, None, bar, at_least=False, why="what a forward of the target must move is not known")
    least = roofline.limit(roofline.cost(facts, 1, CONTEXT), ceilings.read(told)).seconds
    return Claim(what, Interval(forwards[on]["target"][1] / 1000 / least, math.nan, math.nan), bar, at_least=False)


def outside(took: Took) -> list[Claim]:
    """The share of decode time outside forwards: on the reference, and on each method's fastest runtime."""
    found = []
    for method in took.methods:
        best = took.best(method)
        for on, bar in [(REFERENCE, OUTSIDE)] + [(best, OUTSIDE_BEST)] * (best != REFERENCE):
            share = took.by_name[f"{method}, {on}"].outside
            found.append(Claim(f"outside forwards: {method} {on}", share, bar, at_least=False, share=True))
    return found


def gains(took: Took) -> list[Claim]:
    """What speculation is worth: on the reference, and with both methods on their own best runtime."""
    mine, base = (f"{method}, {took.best(method)}" for method in ("sps", "vanilla"))
    return [
        took.ratio("sps over vanilla, both eager", "sps, eager", "vanilla, eager"),
        took.ratio("sps over vanilla, each at best", mine, base),
    ]
