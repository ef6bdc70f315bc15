"""`specbench bench`: this engine beside transformers' own generation, in one process, interleaved document by document.

Also: what the instruments cost (a watched engine against an unwatched one), the share of decode time outside forwards,
and the forward times of the pair by width. Every ratio has a paired bootstrap interval over documents.
"""

import gc
import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich import box
from rich.table import Table
from transformers import PreTrainedModel

from specbench import environment
from specbench.config import SUITES
from specbench.config import load_pair as read_pair
from specbench.console import console, progress
from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.generate import Ending, Limits, until_end
from specbench.decoding.types import Method, Sampling
from specbench.divergence import Divergence, Reference, diverged
from specbench.measure import Stopwatch, now
from specbench.methods.sps import SpS
from specbench.methods.vanilla import Vanilla
from specbench.models import Pair, load_pair
from specbench.pocket.corpus import prompt_and_completion
from specbench.run import detokenizer, encode, timed
from specbench.stats import Interval, Paired, speedup

FAMILIES = ("gsm8k", "math500", "humaneval", "cnndm")
NEW_TOKENS = 96
WIDTHS = (1, 2, 4, 5, 8, 16)
CONTEXT = 200

Generate = Callable[[list[int]], list[int]]  # prompt to new tokens


def main(pair_name: str, documents: int, gamma: int, device: str, dtype: str, out: Path | None) -> int:
    """Print the tables; returns an exit code: 1 if a text leaves vanilla's where the logits are no numeric tie."""
    pair = load_pair(read_pair(pair_name), device, dtype)
    pair.need_one_tokenizer("transformers' assisted generation is compared with drafts in the target's tokens")
    prompts = [encode(pair, prompt) for family in FAMILIES for prompt in bundled_prompts(family, documents)]
    watch = Stopwatch(pair.device)

    def methods(watched: Stopwatch | None) -> tuple[Method, Method]:
        target = pair.session("target", watched)
        return Vanilla(target), SpS(target, ModelDrafter(pair.session("draft", watched)), gamma)

    vanilla, sps = methods(watch)
    bare_vanilla, bare_sps = methods(None)
    engines: dict[str, Generate] = {
        "vanilla": _ours(vanilla, pair, watch),
        "vanilla, unwatched": _ours(bare_vanilla, pair, Stopwatch(pair.device)),
        "vanilla, transformers": _theirs(pair, None, gamma),
        "sps": _ours(sps, pair, watch),
        "sps, unwatched": _ours(bare_sps, pair, Stopwatch(pair.device)),
        "sps, transformers": _theirs(pair, pair.models["draft"], gamma),
    }
    gc.collect()
    gc.freeze()
    seconds = {name: np.zeros(len(prompts)) for name in engines}
    counts = {name: np.zeros(len(prompts)) for name in engines}
    equal = {name: 0 for name in engines}
    divergences: list[Divergence] = []
    inside: dict[str, list[float]] = {"vanilla": [0.0, 0.0], "sps": [0.0, 0.0]}  # seconds in forwards, and in all
    for generate in engines.values():
        generate(prompts[0])
    order = random.Random(0)
    with progress("bench", len(prompts)) as advance:
        for at, prompt in enumerate(prompts):
            texts = {}
            for name in order.sample(list(engines), len(engines)):
                _wait(pair)
                began = now()
                texts[name] = engines[name](prompt)
                _wait(pair)
                seconds[name][at], counts[name][at] = now() - began, len(texts[name])
                if name in inside:
                    laps = watch.laps()[1:]
                    inside[name][0] += sum(f.seconds for lap in laps for f in lap.forwards)
                    inside[name][1] += sum(lap.seconds for lap in laps)
            for name in engines:
                equal[name] += texts[name] == texts["vanilla"]
                if found := diverged(Reference(pair, None), prompt, texts["vanilla"], texts[name]):
                    divergences.append(found)
            advance(1)
    ratios = {
        name: speedup(Paired(seconds[base], counts[base], seconds[mine], counts[mine]))
        for name, mine, base in (
            ("sps over vanilla", "sps", "vanilla"),
            ("vanilla over transformers' vanilla", "vanilla", "vanilla, transformers"),
            ("sps over transformers' assisted generation", "sps", "sps, transformers"),
            ("instrument: vanilla unwatched over watched", "vanilla, unwatched", "vanilla"),
            ("instrument: sps unwatched over watched", "sps, unwatched", "sps"),
        )
    }
    overhead = {name: 1 - part / whole for name, (part, whole) in inside.items()}
    forwards = {role: forward_times(pair, role) for role in pair.models}
    speeds = {name: counts[name].sum() / seconds[name].sum() for name in engines}
    _print(len(prompts), gamma, speeds, equal, ratios, overhead, forwards)
    if out:
        figures = {
            "environment": environment.describe(pair.device),
            "models": pair.describe(),
            "documents": len(prompts),
            "gamma": gamma,
            "tokens_per_s": speeds,
            "texts_equal_to_vanilla": equal,
            "divergences": [vars(one) for one in divergences],
            "ratios": {name: vars(one) if one else None for name, one in ratios.items()},
            "overhead": overhead,
            "forward_ms": forwards,
        }
        out.write_text(json.dumps(figures, indent=1) + "\n")
    bugs = [one for one in divergences if one.kind == "bug"]
    if divergences:
        ties = len(divergences) - len(bugs)
        console.print(f"{len(divergences)} texts are not vanilla's: {ties} numeric ties, {len(bugs)} bugs")
    return int(bool(bugs))


def bundled_prompts(family: str, count: int) -> list[str]:
    """The first prompts of a bundled task, without shots; needs no lm-eval."""
    lines = (SUITES / "tasks" / "pocket" / f"{family}_test.jsonl").read_text().splitlines()[:count]
    return [prompt_and_completion(family, json.loads(line))[0] for line in lines]


def _ours(method: Method, pair: Pair, watch: Stopwatch) -> Generate:
    def generate(prompt: list[int]) -> list[int]:
        ending = Ending(Limits(NEW_TOKENS, pair.eos_ids), detokenizer(pair))
        timed(until_end(method.rounds(prompt, Sampling(), torch.Generator(pair.device)), ending), watch)
        return ending.tokens

    return generate


def _theirs(pair: Pair, assistant: PreTrainedModel | None, gamma: int) -> Generate:
    """transformers' generate, with the same greedy rule, length and end tokens, and a constant draft length."""
    if assistant is not None:
        assistant.generation_config.num_assistant_tokens = gamma
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = 0.0

    def generate(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt], device=pair.device)
        output = pair.models["target"].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=assistant,
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=sorted(pair.eos_ids),
            pad_token_id=pair.tokenizer.pad_token_id or 0,
        )
        return output[0, len(prompt) :].tolist()

    return generate


def forward_times(pair: Pair, role: str, repeats: int = 30) -> dict[int, float]:
    """Milliseconds (median) of a forward of each width behind CONTEXT tokens."""
    watch = Stopwatch(pair.device)
    session = pair.session(role, watch)
    session.restart([7] * CONTEXT)
    times = {}
    for width in WIDTHS:
        watch.start()
        for _ in range(repeats):
            session.forward([7] * width)
            session.truncate(CONTEXT)
        watch.lap()
        times[width] = 1000 * statistics.median(f.seconds for f in watch.laps()[0].forwards)
    return times


def _wait(pair: Pair) -> None:
    if pair.device.type == "cuda":
        torch.cuda.synchronize(pair.device)


def _print(
    documents: int,
    gamma: int,
    speeds: dict[str, float],
    equal: dict[str, int],
    ratios: dict[str, Interval | None],
    overhead: dict[str, float],
    forwards: dict[str, dict[int, float]],
) -> None:
    table = Table(title=f"{documents} documents, greedy, γ={gamma}", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("engine", "tokens/s", "same text", "outside forwards"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    for name, speed in speeds.items():
        share = f"{overhead[name]:.1%}" if name in overhead else ""
        table.add_row(name, f"{speed:.0f}", f"{equal[name]}/{documents}", share)
    console.print(table)
    table = Table(title="ratios of tokens/s, prefill included", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("", "ratio", "95 % interval"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, one in ratios.items():
        table.add_row(name, *([f"{one.value:.3f}", f"[{one.low:.3f}, {one.high:.3f}]"] if one else ["-", "-"]))
    console.print(table)
    table = Table(title=f"forward, ms (median, context {CONTEXT})", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("width")
    for width in WIDTHS:
        table.add_column(str(width), justify="right")
    for role, times in forwards.items():
        table.add_row(role, *(f"{ms:.2f}" for ms in times.values()))
    console.print(table)
