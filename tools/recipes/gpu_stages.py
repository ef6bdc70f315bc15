"""The stages of gpu.sh: each measures one thing on a GPU and leaves a file; with --tiny on any device, in seconds.

    python tools/recipes/gpu_stages.py widths --out FOLDER [--tiny]

A file has what was found, the command, the commit, the machine, and what its GPUs did meanwhile.
"""

import argparse
import collections
import importlib.util
import json
import math
import re
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specbench.base import environment
from specbench.config import MethodSpec, Setting, UserError, load_method, override
from specbench.config import load_pair as read_pair
from specbench.engine.clock import Stopwatch
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models import cost
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.graph import FixedStep, Graph, Key
from specbench.engine.runtimes.lean import doubled
from specbench.engine.runtimes.static import STATIC
from specbench.engine.types import Sampling
from specbench.measure import gpus
from specbench.measure.divergence import Reference, diverged
from specbench.measure.prepare import build
from specbench.measure.prompts import encode
from specbench.measure.sample import timed
from specbench.studies import ceilings
from specbench_extras.bench import shapes
from specbench_extras.bench.engines import synthetic
from specbench_extras.bench.forced import tokens_a_round
from specbench_extras.bench.interleave import interleave, speed_ratio, warm_up
from specbench_extras.bench.prompts import bundled_prompts

ROOT = Path(__file__).parents[2]
CUDA = torch.cuda.is_available()
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
CONTEXT = 200
# Written before the run that decides it. What is known is of results/reference/bench-h200.json.
PREDICTION = """A forward of 8 tokens took 2.5 ms where one of 5 took 1.0. No graph was missed: launch by launch one
took 4.1 ms (static). The draft, of 3 layers of the same width, takes 119 µs a layer longer for 8 tokens than for 5,
the target, of 12, 125: the same work in each layer. So float32 products leave cuBLAS's kernels for a few columns for
tiled ones, which add up K = 192 to 512 in a handful of blocks, about 20 µs longer for each of the six products of a
layer. Then (1) the jump is between 5 and 8 tokens in float32, and another GEMM kernel is named at 8 than at 5; (2) in
bfloat16, and in float32 with TF32, 8 tokens take at most 1.2 times 5; (3) at least 80 % of what is gained is in
products, none in norms, softmax or rotations. If (3) fails in favour of the products with keys and values (bmm), the
attention is to be computed by a kernel of its own; if (1) fails, the clock or the capture is to be looked at."""


def session_times(pair: Pair, role: str, widths: Sequence[int], repeats: int = 30) -> dict[int, float]:
    """Milliseconds (median) of a forward of each width after CONTEXT tokens."""
    watch = Stopwatch(pair.device)
    session = pair.session(role, watch)
    session.restart([7] * CONTEXT)
    found = {}
    for settle in (True, False):
        for width in widths:
            watch.start()
            for _ in range(1 if settle else repeats):
                session.forward([7] * width)
                session.truncate(CONTEXT)
            watch.lap()
            found[width] = 1000 * statistics.median(f.seconds for f in watch.laps()[0].forwards)
        if settle:
            pair.runtime.settle()
    return found


def kernels(pair: Pair, width: int) -> dict[str, Any]:
    """Microseconds of a forward by torch's operation and by kernel, launch by launch, and the number of kernels."""
    from torch.profiler import ProfilerActivity, profile

    runner = pair.runtime.runner(pair.models["target"])
    runner.forward(torch.full((CONTEXT,), 7, device=pair.device), 1, (), None, None)
    step = FixedStep(runner, Key(width, doubled(CONTEXT + width), (), False, False))  # type: ignore[arg-type]
    step.start.fill_(CONTEXT)
    with torch.inference_mode():
        for _ in range(3):
            step.compute()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if CUDA else [])]
        with profile(activities=activities) as seen:
            step.compute()
    operations: collections.Counter[str] = collections.Counter()
    by_kernel: collections.Counter[str] = collections.Counter()
    count = 0
    for event in seen.key_averages():
        spent = event.self_device_time_total if CUDA else event.self_cpu_time_total
        if CUDA and event.device_type == torch.autograd.DeviceType.CUDA:
            by_kernel[event.key] += spent
            count += event.count
        elif event.key.startswith("aten::"):
            operations[event.key] += spent
    kept = (dict((name, round(spent, 1)) for name, spent in one.most_common(25)) for one in (operations, by_kernel))
    by_operation, named = kept
    return {"kernels": count, "by_operation_us": by_operation, "by_kernel_us": named}


def launch_limit(count: int) -> float:
    """Milliseconds of a graph of so many kernels that do nothing."""
    if not CUDA or not count:
        return 0.0
    number, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
    number.add_(1)
    with torch.cuda.graph(graph):
        for _ in range(count):
            number.add_(1)
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    began.record()
    for _ in range(20):
        graph.replay()
    ended.record()
    torch.cuda.synchronize()
    return began.elapsed_time(ended) / 20


def loaded(name: str, dtype: str, tiny: bool) -> dict[str, Pair]:
    """The pair on graph, static and eager; off a GPU graph computes launch by launch."""
    spec, device = read_pair("pocket" if tiny else name), "cuda" if CUDA else "cpu"
    try:
        pair = load_pair(spec, device, dtype)
    except UserError as error:  # such as a draft in fewer bits that this GPU has no kernels for
        print(f"gpu.sh: {name} without its draft: {error}", flush=True)
        pair = load_pair(spec.model_copy(update={"draft": None}), device, dtype)
    return {one.name: replace(pair, runtime=one) for one in (Graph(pair.device, captures=CUDA), STATIC, EAGER)}


def widths(tiny: bool) -> dict[str, Any]:
    """Stage b: forwards by width in three types, next to the memory's and the launches' limits; kernels of 5 and 8."""
    found: dict[str, Any] = {"prediction": PREDICTION, "context": CONTEXT, "types": {}}
    for label in ("float32",) if tiny else ("float32", "tf32", "bfloat16"):
        torch.backends.cuda.matmul.allow_tf32 = label == "tf32"
        on = loaded("pocket", "float32" if label == "tf32" else label, tiny)
        chosen = WIDTHS if not tiny else (1, 5, 8)
        times = {
            name: {role: session_times(on[name], role, chosen, 3 if tiny else 30) for role in on[name].models}
            for name in (["graph"] if tiny or label == "tf32" else on)
        }
        profiles = {width: kernels(on["graph"], width) for width in (5, 8)}
        target = on["graph"].models["target"]
        size = cost.facts(target)["weight_bytes"]
        speed = ceilings.measure(target.device, torch.float32, [size], [])["bandwidth"][0]["median"]
        launches = launch_limit(profiles[5]["kernels"])
        found["types"][label] = {
            "ms": times,
            "by_kernel": profiles,
            "memory_limit_ms": 1000 * size / speed,
            "launch_limit_ms": launches,
            "memory_share": {width: 1000 * size / speed / ms for width, ms in times["graph"]["target"].items()},
            "launch_share": {width: launches / ms for width, ms in times["graph"]["target"].items()},
            "8_over_5": times["graph"]["target"][8] / times["graph"]["target"][5],
            "gained_us": gained(profiles),
        }
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def gained(profiles: dict[int, dict[str, Any]]) -> dict[str, float]:
    """What operations take longer for 8 tokens than for 5, in microseconds."""
    five, eight = (profiles[width]["by_operation_us"] for width in (5, 8))
    return {name: round(eight.get(name, 0.0) - five.get(name, 0.0), 1) for name in {**five, **eight}}


def gates(tiny: bool, seconds: float) -> dict[str, Any]:
    """Stage a: the gate tests on the device, those of graphs first, each with its outcome, as far as time allows."""
    sys.path.insert(0, str(ROOT / "tests"))
    import gpu_check

    files = [str(path.relative_to(ROOT)) for path in gpu_check.gates()]
    first = [file for file in files if re.search(r"/test_(graph|chains|runtimes|equality)", file)]
    rest = sorted((file for file in files if file not in first), key=lambda file: "tests/engine/" not in file)
    parts = [["tests/engine/test_trees.py"]] if tiny else [first, rest]
    outcomes: dict[str, str] = {}
    reasons: list[str] = []
    ended = time.monotonic() + seconds
    for part in parts:
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "not long", *part]
        command += ["--tb=short", "--color=no", "-rfE"]
        if importlib.util.find_spec("xdist") and not tiny:
            command += ["-n", str(gpu_check.WORKERS), "--max-worker-restart", "0"]
        left = max(20.0, ended - time.monotonic())
        for name, outcome in ran(command, left, reasons):
            outcomes[name] = outcome
    counted = collections.Counter(outcomes.values())
    return {"counts": dict(counted), "asked": sum(map(len, parts)), "outcomes": outcomes, "reasons": reasons}


def ran(command: Sequence[str], seconds: float, reasons: list[str]) -> Iterator[tuple[str, str]]:
    """The outcome of each test by its name, as far as tests ended in time; lines that say why come to `reasons`."""
    device = {"SPECBENCH_TEST_DEVICE": "cuda" if CUDA else "cpu"}
    from os import environ

    asked = subprocess.Popen(
        ["timeout", str(int(seconds)), *command], cwd=ROOT, env={**environ, **device}, stdout=subprocess.PIPE, text=True
    )
    assert asked.stdout
    for line in asked.stdout:
        words = "PASSED|FAILED|SKIPPED|ERROR|XFAIL"
        if match := re.search(rf"({words}) (\S+::.+?)\s*$|^(\S+::.+?) ({words})", line):
            yield (match[2] or match[3]).strip(), (match[1] or match[4]).lower()
        elif re.match(r"E  |FAILED |ERROR |INTERNALERROR|\S+\.py:\d+: ", line) and len(reasons) < 200:
            reasons.append(line.rstrip()[:300])
    asked.wait()


def bench(tiny: bool) -> dict[str, Any]:
    """Stage b: specbench's own bench, all runtimes next to transformers' generate and vLLM, in float32 and bfloat16."""
    found = {}
    for dtype in ("float32",) if tiny else ("float32", "bfloat16"):
        out = Path("build") / f"gpu-bench-{dtype}.json"
        out.parent.mkdir(exist_ok=True)
        size = ["--documents", "2", "--runtime", "static"] if tiny else ["--documents", "3"]
        where = ["--device", "cuda" if CUDA else "cpu", "--dtype", dtype]
        out.unlink(missing_ok=True)
        command = [sys.executable, "-m", "specbench.cli", "bench", *where, *size, "--out", str(out)]
        told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
        print(told, flush=True)
        found[dtype] = json.loads(out.read_text()) if out.exists() else {"left_out": told[-2000:]}
    return found


def spec_of(name: str, changes: dict[str, Any]) -> MethodSpec:
    return override(load_method(name), {key: Setting(value=value) for key, value in changes.items()})


def rounds_of(pair: Pair, spec: MethodSpec, prompts: Sequence[list[int]], new: int) -> tuple[dict[str, Any], list[Any]]:
    """What rounds of a method take, once all of it is captured; and its texts."""
    watch = Stopwatch(pair.device)
    method = build(spec, pair, watch)
    texts, rows = [], []
    for warm in (True, True, False):
        for prompt in prompts[: 1 if warm else None]:
            ending = Ending(Limits(new, frozenset() if warm else pair.eos_ids), pair.detokenizer)
            rng = torch.Generator(pair.device).manual_seed(0)
            timed(decode_text(method, prompt, Sampling(), rng, ending), watch)
            if not warm:
                texts.append(ending.tokens)
                rows += watch.laps()[1:]
            pair.runtime.settle()
    tokens, seconds = sum(len(text) - 1 for text in texts), sum(lap.seconds for lap in rows)
    found = {"rounds": len(rows), "tau": tokens / max(1, len(rows)), "tokens_per_s": tokens / seconds if rows else 0.0}
    for name, per in (
        ("round", lambda lap: lap.seconds),
        *((r, lambda lap, r=r: lap.time(r)) for r in ("target", "draft")),
    ):
        found[f"{name}_ms"] = 1000 * statistics.median(per(lap) for lap in rows) if rows else 0.0
    return found, texts


def drafters(name: str, dtype: str, methods: dict[str, dict[str, Any]], tiny: bool, count: int) -> dict[str, Any]:
    """Rounds of methods on `graph`, in forwards of the target; texts next to vanilla's on eager, but for near ties."""
    on = loaded(name, dtype, tiny)
    pair = on["graph"]
    prompts = [encode(pair, prompt) for prompt in bundled_prompts("gsm8k", 1 if tiny else count)]
    new = 12 if tiny else 64
    reference, expected = rounds_of(on["eager"], spec_of("vanilla", {}), prompts, new)
    found: dict[str, Any] = {"pair": pair.name, "dtype": dtype, "models": pair.describe(), "eager": reference}
    for label, changes in methods.items():
        try:
            row, texts = rounds_of(pair, spec_of(label.split(",")[0], changes), prompts, new)
        except Exception as error:  # what others give is kept
            found[label] = {"left_out": why(error)}
            continue
        lefts = [
            diverged(Reference(on["eager"], None), prompt, one, other)
            for prompt, one, other in zip(prompts, expected, texts, strict=True)
        ]
        row["differences"] = [vars(left) for left in lefts if left]
        row["bugs"] = sum(left.kind == "bug" for left in lefts if left)
        found[label] = row
    one = found.get("vanilla", {}).get("round_ms") or 1.0
    for row in found.values():
        if isinstance(row, dict) and row.get("round_ms"):
            row["in_vanilla_rounds"] = row["round_ms"] / one
    return found


HEADS = ("vanilla", "sps", "eagle3", "eagle", "medusa", "hydra", "dflash", "mtp", "eagle2", "pld")


def rounds(tiny: bool) -> dict[str, Any]:
    """Stage b: a round of every head in forwards of the target; at most 2.5 is what `eagle3` has to reach."""
    chosen: dict[str, dict[str, Any]] = {name: {} for name in (HEADS if not tiny else ("vanilla", "eagle3", "dflash"))}
    return drafters("pocket", "float32", chosen, tiny, 6)


def smollm2(tiny: bool) -> dict[str, Any]:
    """Stage c: SmolLM2 in bfloat16, which graph has to accept, and whose texts are eager's but for near ties."""
    names = ("vanilla", "sps", "pld", "mtp") if not tiny else ("vanilla", "pld")
    return drafters("smollm2", "bfloat16", {name: {} for name in names if has_method(name)}, tiny, 6)


def why(error: Exception) -> str:
    """A refusal in its line; of anything else the end of its traceback too, for whoever reads the file."""
    return str(error) if isinstance(error, UserError) else "".join(traceback.format_exception(error))[-3000:]


def has_method(name: str) -> bool:
    try:
        load_method(name)
    except UserError:
        return False
    return True


def synthetic_shapes(tiny: bool) -> dict[str, Any]:
    """Stage d, SYNTHETIC: random models of 0.5, 1 and 8 B: verification of 1 to 64 tokens, and forced acceptance."""
    found: dict[str, Any] = {}
    for shape in ("tiny",) if tiny else ("1b-8b", "0.5b-8b"):
        where, kind = shapes.device_and_dtype("auto", "auto" if not tiny else "float32")
        made = shapes.make(shape, where, kind)
        pair = replace(made, runtime=Graph(where, captures=CUDA))
        chosen = (1, 4, 5) if tiny else (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
        curves = {role: session_times(pair, role, chosen, 3 if tiny else 15) for role in pair.models}
        gamma, prompts = 4, [(shape, prompt) for prompt in shapes.prompts(pair, 1 if tiny else 3)]
        draft, rates = in_one_call(pair, gamma), {}
        for rate in (0.8,) if tiny else (0.6, 0.7, 0.8, 0.9):
            engines = synthetic(pair, gamma, rate)
            warm_up(engines, prompts[0][1])
            pair.runtime.settle()
            times = interleave(engines, prompts, where, lambda prompt, texts: None, pair.runtime.settle)
            vanilla, sps = (times[f"{name}, graph"] for name in ("vanilla", "sps"))
            ratio = speed_ratio(sps, vanilla)
            spent = draft + curves["target"][gamma + 1]
            rates[rate] = {
                "tau": sps.tau,
                "speedup": vars(ratio) if ratio else None,
                "by_formula": tokens_a_round(rate, gamma) * curves["target"][1] / spent,
            }
        found[shape] = {"ms": curves, "draft_of_4_in_one_call_ms": draft, "forced": rates}
        del made, pair
    return {"synthetic": True, "shapes": found}


def in_one_call(pair: Pair, gamma: int) -> float:
    """Milliseconds of a draft of γ tokens after CONTEXT, all in one capture."""
    watch = Stopwatch(pair.device)
    session = pair.session("draft", watch)
    rng = torch.Generator(pair.device).manual_seed(0)
    session.restart([7] * CONTEXT)
    for _ in range(2):
        watch.start()
        for _ in range(8):
            session.draft_chain([7] * CONTEXT, gamma, Sampling(), rng)
        watch.lap()
        found = 1000 * statistics.median(f.seconds for f in watch.laps()[0].forwards)
        pair.runtime.settle()
    return found


def heads(tiny: bool, seconds: float) -> dict[str, Any]:
    """Stage e: a head of EAGLE-3 learns SmolLM2's own answers, as long as time allows, and drafts for it."""
    pair, suite = ("pocket", "pocket") if tiny else ("smollm2", "everyday")
    out = Path("build") / f"gpu-eagle3-{pair}.safetensors"  # the same command goes on with a training that was stopped
    out.parent.mkdir(exist_ok=True)
    few = ["--documents", "4", "--recipe", "epochs=1"] if tiny else ["--documents", "300", "--recipe", "epochs=4"]
    command = ["train", "--method", "eagle3", "--pair", pair, "--suite", suite, *few, "--out", str(out)]
    where = ["--device", "cuda" if CUDA else "cpu", *([] if tiny else ["--dtype", "bfloat16"])]
    began = time.monotonic()
    limit = ["timeout", str(int(max(30, seconds - 60)))]
    if not out.exists():
        subprocess.run([*limit, sys.executable, "-m", "specbench.cli", *command, *where], check=False)
    spent = time.monotonic() - began
    if not out.exists():
        return {"command": command, "seconds": spent, "left_out": "the training did not end; the log says why"}
    return {
        "command": command,
        "seconds": spent,
        "rounds": drafters(pair, "bfloat16", {"vanilla": {}, "eagle3": {"head": str(out)}}, tiny, 6),
    }


STAGES: dict[str, Callable[..., dict[str, Any]]] = {
    "gates": gates,
    "widths": widths,
    "rounds": rounds,
    "bench": bench,
    "shapes": synthetic_shapes,
    "smollm2": smollm2,
    "heads": heads,
}
LONG = ("gates", "heads")  # what is as long as time allows


def main() -> int:
    """Returns 0; also where a stage cannot run here, which its file says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stages", nargs="+", choices=STAGES)
    parser.add_argument("--out", type=Path, required=True, help="folder of the files")
    parser.add_argument("--seconds", type=float, default=200.0, help="for a stage that is as long as time allows")
    parser.add_argument("--tiny", action="store_true", help="on any device, as little as shows that it runs")
    chosen = parser.parse_args()
    if not CUDA and not chosen.tiny:
        print("gpu.sh: torch finds no CUDA device; nothing was measured")
        return 2
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.tiny:
        torch.set_num_threads(1)
    for stage in chosen.stages:
        carry_out(stage, chosen.tiny, chosen.seconds, chosen.out)
    return 0


def finite(value: Any) -> Any:
    """JSON-like data, None in the place of NaN and infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def carry_out(stage: str, tiny: bool, seconds: float, out: Path) -> None:
    """Write the file of a stage."""
    began, device = time.monotonic(), torch.device("cuda" if CUDA else "cpu")
    more = {"seconds": seconds} if stage in LONG else {}
    with gpus.watched(device.type) as looked:
        try:
            found = STAGES[stage](tiny, **more)
        except Exception as error:
            found = {"left_out": why(error)}
    facts = {
        "stage": stage,
        "tiny": tiny,
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "took_seconds": round(time.monotonic() - began, 1),
        "environment": environment.describe(device) | ({"gpu": gpus.facts("cuda")} if CUDA else {}),
        "gpus": looked,
        "peak_memory": torch.cuda.max_memory_allocated() if CUDA else None,
    }
    (out / f"{stage}.json").write_text(json.dumps(finite(facts | found), indent=1, default=str) + "\n")
    print(f"gpu.sh: {stage} took {facts['took_seconds']} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
