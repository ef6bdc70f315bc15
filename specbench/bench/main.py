"""The command: which engines are timed on what, and what is printed and written of it."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from specbench import environment, files
from specbench.bench import claims, shapes, view
from specbench.bench.claims import Claim, Took
from specbench.bench.engines import (
    LOSSLESS,
    NEW_TOKENS,
    REFERENCE,
    Engine,
    forward_times,
    ours,
    runnable,
    synthetic,
)
from specbench.bench.forced import tokens_a_round
from specbench.bench.interleave import Taken, interleave, warm_up
from specbench.bench.peers import peers
from specbench.bench.prompts import FAMILIES, bundled_prompts
from specbench.config import UserError
from specbench.config import load_pair as read_pair
from specbench.console import console, progress
from specbench.divergence import Divergence, Reference, diverged
from specbench.models import Pair, load_pair
from specbench.run import encode
from specbench.stats import Interval

BUNDLED = "pocket"
PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "vllm")
SYNTHETIC = "SYNTHETIC"
WARNING = "SYNTHETIC: random weights and drawn verdicts. The texts mean nothing; only what an engine costs is real."


class Agreement:
    """Which engines gave the reference's texts, and where the lossless ones left them."""

    def __init__(self, pair: Pair, engines: Sequence[Engine]) -> None:
        self.pair = pair
        self.methods = {one.name: one.method for one in engines}
        self.same = {one.name: 0 for one in engines}
        self.found: list[tuple[str, Divergence]] = []

    def see(self, prompt: list[int], texts: dict[str, list[int]]) -> None:
        """Compare the texts of one prompt by engine; a lossy method's with its own on the reference runtime."""
        vanilla = texts[f"vanilla, {REFERENCE}"]
        for name, text in texts.items():
            lossless = self.methods[name] in LOSSLESS
            self.same[name] += text == (vanilla if lossless else texts[f"{self.methods[name]}, {REFERENCE}"])
            if lossless and (left := diverged(Reference(self.pair, None), prompt, vanilla, text)):
                self.found.append((name, left))

    @property
    def bugs(self) -> int:
        return sum(one.kind == "bug" for _, one in self.found)

    def words(self) -> str:
        ties = len(self.found) - self.bugs
        return f"{len(self.found)} texts are not vanilla's: {ties} numeric ties, {self.bugs} bugs"


def main(
    pair_name: str, runtimes: list[str], documents: int, gamma: int, device: str, dtype: str, out: Path | None
) -> int:
    """Time a pair on every runtime, beside peers; 1 if a text leaves vanilla's where the logits are no numeric tie."""
    check_folder(out)
    pair = load_pair(read_pair(pair_name), device, dtype)
    pair.need_one_tokenizer("transformers' assisted generation is compared with drafts in the target's tokens")
    prompts = [
        (f"{BUNDLED}_{family}", encode(pair, prompt))
        for family in FAMILIES
        for prompt in bundled_prompts(family, documents)
    ]
    check_room(pair, max(len(prompt) for _, prompt in prompts), gamma)
    pairs, missing = runnable(pair, runtimes)
    engines = [engine for one in pairs.values() for engine in ours(one, gamma)]
    theirs, without = peers(pair, gamma)
    engines += theirs
    between = settle(engines, pairs, prompts[0][1])
    agreement = Agreement(pair, engines)
    taken = interleave(engines, prompts, pair.device, agreement.see, between)
    forwards = every_forward(pairs)
    took = Took(taken, missing | without)
    cuda, judged = pair.device.type == "cuda", pair_name == BUNDLED
    found = claims.of_pair(took, cuda, judged)
    found.append(claims.over_limit(pair, forwards, cuda and judged))
    view.print_engines(f"{len(prompts)} documents, greedy, γ={gamma}", took, agreement.same, len(prompts))
    view.print_claims("what the engine has to reach", took, found)
    view.print_instruments(took)
    view.print_forwards("", forwards)
    view.print_missing(took.missing)
    if agreement.found:
        console.print(agreement.words())
    if out:
        facts = {
            "texts_equal": agreement.same,
            "divergences": [{"engine": name, **vars(one), "gap": _finite(one.gap)} for name, one in agreement.found],
            "models": pair.describe(),
        }
        write(out, pair, pairs, gamma, took, found, forwards, facts)
    return int(agreement.bugs > 0)


def main_of_shapes(
    shape: str,
    rate: float,
    runtimes: list[str],
    documents: int,
    gamma: int,
    device: str,
    dtype: str,
    out: Path | None,
) -> int:
    """Time random models in the shape of real ones, with verdicts drawn at an acceptance rate. SYNTHETIC throughout."""
    check_folder(out)
    where, kind = shapes.placed(device, dtype)
    pair = shapes.make(shape, where, kind)
    console.print(WARNING, highlight=False, style="bold")
    prompts = [(shape, prompt) for prompt in shapes.prompts(pair, documents)]
    check_room(pair, len(prompts[0][1]), gamma)
    pairs, missing = runnable(pair, runtimes, shapes.too_large(shape, pair, runtimes))
    engines = [engine for one in pairs.values() for engine in synthetic(one, gamma, rate)]
    between = settle(engines, pairs, prompts[0][1])
    taken = interleave(engines, prompts, where, lambda prompt, texts: None, between)
    forwards = every_forward(pairs)
    took = Took(taken, missing)
    cuda, judged = where.type == "cuda", shape == "1b-8b" and kind == torch.bfloat16
    found = claims.of_shapes(took, cuda, judged)
    found.append(claims.over_limit(pair, forwards, cuda and judged))
    name = str(kind).removeprefix("torch.")
    title = f"{SYNTHETIC} {shape}, {name}: {documents} random prompts, γ={gamma}, acceptance forced to {rate:g}"
    view.print_engines(title, took, None, documents)
    expected = tokens_a_round(rate, gamma)
    console.print(
        f"{SYNTHETIC}: the τ of sps is forced; over many rounds it is {expected:.2f}", style="dim", highlight=False
    )
    view.print_claims(f"{SYNTHETIC}: what it comes to", took, found)
    view.print_forwards(f"{SYNTHETIC}: ", forwards)
    view.print_missing(took.missing)
    if out:
        sizes = {role: {"parameters": one.num_parameters(), "dtype": name} for role, one in pair.models.items()}
        facts = {
            "synthetic": True,
            "warning": WARNING,
            "shape": shape,
            "forced_acceptance": rate,
            "expected_tau": expected,
            "models": sizes,
        }
        write(out, pair, pairs, gamma, took, found, forwards, facts)
    return 0


def check_folder(out: Path | None) -> None:
    """Raise UserError for a file that could not be written when all is measured."""
    if out and not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it first")


def check_room(pair: Pair, longest: int, gamma: int) -> None:
    """Raise UserError if a prompt, its text and a draft are longer than what the models were made for."""
    need = longest + NEW_TOKENS + gamma + 1
    if need > pair.context:
        raise UserError(f"the prompts need {need} positions, and {pair.name} has {pair.context}; use a smaller --gamma")


def settle(engines: Sequence[Engine], pairs: Mapping[str, Pair], prompt: list[int]) -> Callable[[], None]:
    """Do once what is done once: first texts, then what the runtimes put off. Returns what does that again."""

    def between() -> None:
        for one in pairs.values():
            one.runtime.settle()

    warm_up(engines, prompt)
    between()
    return between


def every_forward(pairs: Mapping[str, Pair]) -> dict[str, dict[str, dict[int, float]]]:
    """Milliseconds by runtime, role and width."""
    roles = ("target", "draft")
    found: dict[str, dict[str, dict[int, float]]] = {name: {} for name in pairs}
    with progress("forwards", len(pairs) * len(roles)) as advance:
        for name, pair in pairs.items():
            for role in roles:
                found[name][role] = forward_times(pair, role)
                advance(1)
    return found


def write(
    out: Path,
    pair: Pair,
    pairs: Mapping[str, Pair],
    gamma: int,
    took: Took,
    found: Sequence[Claim],
    forwards: dict[str, dict[str, dict[int, float]]],
    facts: Mapping[str, Any],
) -> None:
    """Everything that was printed, and what it depends on, as JSON."""
    figures = {
        **facts,
        "environment": environment.describe(pair.device),
        "runtimes": {name: one.runtime.facts() | {"seconds": one.runtime.seconds} for name, one in pairs.items()},
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "missing": dict(took.missing),
        "documents": len(next(iter(took.by_name.values())).seconds),
        "gamma": gamma,
        "new_tokens": NEW_TOKENS,
        "engines": {name: _engine(one) for name, one in took.by_name.items()},
        "over_eager": {name: _interval(one) for name, one in took.against_reference().items()},
        "best": {method: took.best(method) for method in took.methods},
        "claims": [vars(one) | {"found": _interval(one.found), "verdict": one.verdict} for one in found],
        "forward_ms": forwards,
    }
    files.write_text(out, json.dumps(figures, indent=1) + "\n")


def _engine(one: Taken) -> dict[str, Any]:
    watched = one.outside is not None
    return {
        "tokens_per_s": one.rate,
        "seconds": one.seconds.tolist(),
        "tokens": [int(n) for n in one.tokens],
        "tau": one.tau if watched else None,
        "outside_forwards": _interval(one.outside),
    }


def _interval(one: Interval | None) -> dict[str, float | None] | None:
    return {key: _finite(value) for key, value in vars(one).items()} if one else None


def _finite(value: float) -> float | None:
    """As JSON has it, which knows neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
