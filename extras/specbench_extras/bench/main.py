"""The command `bench`: choose engines and prompts, time them, print and write the figures."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from specbench.base import environment, files
from specbench.base.console import console, progress, warn
from specbench.base.stats import Interval
from specbench.config import PairSpec, UserError
from specbench.config import load_pair as read_pair
from specbench.engine.models.pair import Pair, load_pair
from specbench.measure.divergence import Divergence, Reference, diverged
from specbench.measure.gpus import watched
from specbench.measure.manifest import gpu_facts
from specbench.measure.prompts import encode
from specbench.results import aside
from specbench_extras.bench import claims, shapes, view
from specbench_extras.bench.claims import BenchTimes, Claim
from specbench_extras.bench.engines import (
    LOSSLESS,
    NEW_TOKENS,
    REFERENCE,
    Engine,
    forward_times,
    ours,
    runnable,
    synthetic,
)
from specbench_extras.bench.forced import tokens_a_round
from specbench_extras.bench.interleave import EngineTimes, interleave, warm_up
from specbench_extras.bench.peers import peers
from specbench_extras.bench.prompts import FAMILIES, bundled_prompts

BUNDLED = "pocket"
PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "vllm")
SYNTHETIC = "SYNTHETIC"
WARNING = "SYNTHETIC: random weights and drawn verdicts. The texts mean nothing; only what an engine costs is real."
MISSED = 4  # the exit code of a bar that is missed


class Agreement:
    """Counts of texts equal to the reference's by engine, and the divergences of lossless engines."""

    def __init__(self, pair: Pair, engines: Sequence[Engine]) -> None:
        self.pair = pair
        self.methods = {engine.name: engine.method for engine in engines}
        self.same = {engine.name: 0 for engine in engines}
        self.divergences: list[tuple[str, Divergence]] = []

    def see(self, prompt: list[int], texts: dict[str, list[int]]) -> None:
        """Compare the texts of one prompt; those of a lossy method with its own text on the reference runtime."""
        vanilla = texts[f"vanilla, {REFERENCE}"]
        for name, text in texts.items():
            lossless = self.methods[name] in LOSSLESS
            self.same[name] += text == (vanilla if lossless else texts[f"{self.methods[name]}, {REFERENCE}"])
            if lossless and (left := diverged(Reference(self.pair, None), prompt, vanilla, text)):
                self.divergences.append((name, left))

    @property
    def bugs(self) -> int:
        return sum(divergence.kind == "bug" for _, divergence in self.divergences)

    def words(self) -> str:
        ties = len(self.divergences) - self.bugs
        return f"{len(self.divergences)} texts are not vanilla's: {ties} numeric ties, {self.bugs} bugs"


def main(
    chosen: str | PairSpec,
    runtimes: list[str],
    documents: int,
    runs: int,
    gamma: int,
    device: str,
    dtype: str,
    out: Path | None,
) -> int:
    """Time a pair on every runtime, next to peers.

    Returns 1 if a text leaves vanilla's without a numeric tie, else MISSED if a bar is missed by a whole interval.
    """
    check_folder(out)
    pair = load_pair(read_pair(chosen), device, dtype)
    pair.need_one_tokenizer("transformers' assisted generation is compared with drafts in the target's tokens")
    prompts = [
        (f"{BUNDLED}_{family}", encode(pair, prompt))
        for family in FAMILIES
        for prompt in bundled_prompts(family, documents)
    ]
    check_room(pair, max(len(prompt) for _, prompt in prompts), gamma)
    pairs, missing = runnable(pair, runtimes)
    engines = [engine for on in pairs.values() for engine in ours(on, gamma)]
    theirs, without = peers(pair, gamma)
    engines += theirs
    between = settle(engines, pairs, prompts[0][1])
    agreement = Agreement(pair, engines)
    with watched(device if pair.device.type == "cuda" else "cpu") as gpus:
        by_name = interleave(engines, prompts, pair.device, agreement.see, between, runs)
        forwards = every_forward(pairs)
    times = BenchTimes(by_name, missing | without)
    cuda, judged = pair.device.type == "cuda", pair.name == BUNDLED
    claimed = claims.of_pair(times, cuda, judged)
    claimed.append(claims.over_limit(pair, forwards, cuda and judged))
    claimed = unless_slowed(claimed, gpus)
    size = f"{len(prompts)} documents{view.words_of_runs(runs)}"
    view.print_engines(f"{size}, greedy, γ={gamma}", times, agreement.same, runs * len(prompts))
    view.print_claims("what the engine has to reach", times, claimed)
    view.print_runs(claimed)
    view.print_instruments(times)
    view.print_forwards("", forwards)
    view.print_missing(times.missing)
    if agreement.divergences:
        console.print(agreement.words())
    if out:
        facts = {
            "texts_equal": agreement.same,
            "divergences": [
                {"engine": name, **vars(divergence), "gap": _finite(divergence.gap)}
                for name, divergence in agreement.divergences
            ],
            "models": pair.describe(),
            "gpus": gpus,
        }
        write(out, pair, pairs, gamma, times, claimed, forwards, facts)
    return 1 if agreement.bugs else MISSED * missed(claimed)


def main_of_shapes(
    shape: str,
    rate: float,
    runtimes: list[str],
    documents: int,
    runs: int,
    gamma: int,
    device: str,
    dtype: str,
    out: Path | None,
) -> int:
    """Time random models in the shape of real ones, with verdicts drawn at rate `rate`. SYNTHETIC throughout."""
    check_folder(out)
    where, kind = shapes.device_and_dtype(device, dtype)
    pair = shapes.make(shape, where, kind)
    console.print(WARNING, highlight=False, style="bold")
    prompts = [(shape, prompt) for prompt in shapes.prompts(pair, documents)]
    check_room(pair, len(prompts[0][1]), gamma)
    pairs, missing = runnable(pair, runtimes, shapes.too_large(shape, pair, runtimes))
    engines = [engine for on in pairs.values() for engine in synthetic(on, gamma, rate)]
    between = settle(engines, pairs, prompts[0][1])
    with watched(device if where.type == "cuda" else "cpu") as gpus:
        by_name = interleave(engines, prompts, where, lambda prompt, texts: None, between, runs)
        forwards = every_forward(pairs)
    times = BenchTimes(by_name, missing)
    cuda, judged = where.type == "cuda", shape == "1b-8b" and kind == torch.bfloat16
    claimed = claims.of_shapes(times, cuda, judged)
    claimed.append(claims.over_limit(pair, forwards, cuda and judged))
    claimed = unless_slowed(claimed, gpus)
    name = str(kind).removeprefix("torch.")
    size = f"{documents} random prompts{view.words_of_runs(runs)}"
    title = f"{SYNTHETIC} {shape}, {name}: {size}, γ={gamma}, acceptance forced to {rate:g}"
    view.print_engines(title, times, None, documents)
    expected = tokens_a_round(rate, gamma)
    console.print(
        f"{SYNTHETIC}: the τ of sps is forced; over many rounds it is {expected:.2f}", style="dim", highlight=False
    )
    view.print_claims(f"{SYNTHETIC}: what it comes to", times, claimed)
    view.print_runs(claimed)
    view.print_forwards(f"{SYNTHETIC}: ", forwards)
    view.print_missing(times.missing)
    if out:
        sizes = {role: {"parameters": model.num_parameters(), "dtype": name} for role, model in pair.models.items()}
        facts = {
            "synthetic": True,
            "warning": WARNING,
            "shape": shape,
            "forced_acceptance": rate,
            "expected_tau": expected,
            "models": sizes,
            "gpus": gpus,
        }
        write(out, pair, pairs, gamma, times, claimed, forwards, facts)
    return MISSED * missed(claimed)


def unless_slowed(claimed: Sequence[Claim], gpus: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """The claims, without a bar where a GPU was slowed down; a line says so."""
    if not (slowed := aside.slowed(gpus)):
        return list(claimed)
    warn(f"{slowed} while engines were timed, so nothing is judged; see nvidia-smi, and repeat")
    return [replace(claim, bar=None) for claim in claimed]


def missed(claimed: Sequence[Claim]) -> bool:
    """True if a figure and its whole interval are on the wrong side of its bar."""
    return any(claim.verdict == "missed" for claim in claimed)


def check_folder(out: Path | None) -> None:
    """Raise UserError if `out` could not be written once everything is measured."""
    if out and not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it first")


def check_room(pair: Pair, longest: int, gamma: int) -> None:
    """Raise UserError if a prompt, its text and a draft are longer than the pair's context."""
    need = longest + NEW_TOKENS + gamma + 1
    if need > pair.context:
        raise UserError(f"the prompts need {need} positions, and {pair.name} has {pair.context}; use a smaller --gamma")


def settle(engines: Sequence[Engine], pairs: Mapping[str, Pair], prompt: list[int]) -> Callable[[], None]:
    """Warm up all engines, then let runtimes do the work they put off; return a function that repeats the latter."""

    def between() -> None:
        for pair in pairs.values():
            pair.runtime.settle()

    warm_up(engines, prompt)
    between()
    return between


def every_forward(pairs: Mapping[str, Pair]) -> dict[str, dict[str, dict[int, float]]]:
    """Milliseconds by runtime, role and width."""
    roles = ("target", "draft")
    milliseconds: dict[str, dict[str, dict[int, float]]] = {name: {} for name in pairs}
    with progress("forwards", len(pairs) * len(roles)) as advance:
        for name, pair in pairs.items():
            for role in roles:
                milliseconds[name][role] = forward_times(pair, role)
                advance(1)
    return milliseconds


def write(
    out: Path,
    pair: Pair,
    pairs: Mapping[str, Pair],
    gamma: int,
    times: BenchTimes,
    claimed: Sequence[Claim],
    forwards: dict[str, dict[str, dict[int, float]]],
    facts: Mapping[str, Any],
) -> None:
    """Write everything that was printed, and what it depends on, as JSON."""
    figures = {
        **facts,
        "environment": environment.describe(pair.device, pair.draft_device) | gpu_facts(pair, str(pair.device)),
        "runtimes": {name: on.runtime.facts() | {"seconds": on.runtime.seconds} for name, on in pairs.items()},
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "missing": dict(times.missing),
        "documents": next(iter(times.by_name.values())).seconds.shape[1],
        "runs": times.runs,
        "gamma": gamma,
        "new_tokens": NEW_TOKENS,
        "engines": {name: _engine(mine) for name, mine in times.by_name.items()},
        "over_eager": {name: _interval(ratio) for name, ratio in times.against_reference().items()},
        "best": {method: times.best(method) for method in times.methods},
        "claims": [
            {name: value for name, value in vars(claim).items() if name != "measured"}
            | {"found": _interval(claim.measured), "verdict": claim.verdict}
            for claim in claimed
        ],
        "forward_ms": forwards,
    }
    files.write_text(out, json.dumps(figures, indent=1) + "\n")


def _engine(times: EngineTimes) -> dict[str, Any]:
    watched = times.outside is not None
    return {
        "tokens_per_s": times.rate,
        "seconds": times.seconds.tolist(),
        "tokens": times.tokens.astype(int).tolist(),
        "tau": times.tau if watched else None,
        "outside_forwards": _interval(times.outside),
    }


def _interval(interval: Interval | None) -> dict[str, float | None] | None:
    return {key: _finite(value) for key, value in vars(interval).items()} if interval else None


def _finite(value: float) -> float | None:
    """The value, or None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
