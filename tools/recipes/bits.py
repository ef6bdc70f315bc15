"""What weights in fewer bits lose: how far their distributions are from those of the same weights in float32.

    python tools/recipes/bits.py smollm2 results/reference/bits-smollm2.json
    python tools/recipes/bits.py qwen2.5-coder results/reference/bits-qwen2.5-coder.json

The pair's target, a GGUF file, reads real text: passages of the suite `everyday`, and the beginnings of modules of
Python's standard library. By way of computing: nats of KL(float32 || way) for each token, the mean with a 95 % interval
over texts, and the share of tokens whose likeliest successor is the same. Without its package llama.cpp is left out.
"""

import gc
import importlib.util
import inspect
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from specbench import config
from specbench.base import environment
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.runtimes import choose

TOKENS = 128  # of a text
PASSAGES = 8
MODULES = ("textwrap", "heapq", "statistics", "fractions")
# By way: runtime, dtype, weights.
WAYS = {
    "bfloat16": ("static", "bfloat16", None),
    "int8": ("eager", "float32", "int8"),
    "int4": ("eager", "float32", "int4"),
    "llama.cpp, the file": ("llamacpp", "auto", None),
    "llama.cpp, Q8_0 of it": ("llamacpp", "auto", "int8"),
    "llama.cpp, Q4_0 of it": ("llamacpp", "auto", "int4"),
}


def main(name: str, out: str) -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    pair = loaded(name, "eager", "float32", None)
    machine = environment.describe(pair.device)
    texts = [ids[:TOKENS] for ids in tokens(pair)]
    exact = list(distributions(pair, texts))
    rows: dict[str, Any] = {}
    for way, (runtime, dtype, weights) in WAYS.items():
        if runtime == "llamacpp" and importlib.util.find_spec("llama_cpp") is None:
            continue
        del pair
        gc.collect()
        pair = loaded(name, runtime, dtype, weights)
        rows[way] = compared(exact, distributions(pair, texts)) | {
            "weights": pair.hashes["target"].get("weights", dtype)
        }
        print(way, rows[way], flush=True)
    facts = {
        "command": f"python tools/recipes/bits.py {name}",
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine,
        "file": {key: pair.hashes["target"][key] for key in ("file", "file_sha256", "quantization")},
        "texts": len(texts),
        "tokens": sum(map(len, texts)),
        "ways": rows,
    }
    Path(out).write_text(json.dumps(facts, indent=1) + "\n")


def loaded(name: str, runtime: str, dtype: str, weights: str | None) -> Pair:
    """The pair's target alone, at a runtime."""
    spec = config.load_pair(name).model_copy(update={"draft": None, "members": ()})
    spec = config.with_weights(spec, [weights]) if weights else spec
    pair = load_pair(spec, "cpu", dtype, runtime=runtime)
    return replace(pair, runtime=choose.runtime(runtime, pair))


def tokens(pair: Pair) -> Iterator[list[int]]:
    """Token ids of real text and code."""
    lines = (config.SUITES / "tasks" / "everyday" / "reading_test.jsonl").read_text().splitlines()
    modules = (inspect.getsource(importlib.import_module(module)) for module in MODULES)
    for text in (*(json.loads(line)["passage"] for line in lines[:PASSAGES]), *modules):
        yield pair.tokenizer(text)["input_ids"]


def distributions(pair: Pair, texts: list[list[int]]) -> Iterator[torch.Tensor]:
    """Log-probabilities [n, V] of the token after each of a text."""
    session = pair.session("target")
    for ids in texts:
        session.truncate(0)
        yield session.forward(ids).logits.float().log_softmax(-1)


def compared(exact: list[torch.Tensor], others: Iterator[torch.Tensor]) -> dict[str, Any]:
    """Mean nats a token with their interval over texts, the 99th percentile, and the share of equal choices."""
    divergences, same = [], []
    for p, q in zip(exact, others, strict=True):
        divergences.append((p.exp() * (p - q)).sum(-1).clamp(min=0).numpy())
        same.append((p.argmax(-1) == q.argmax(-1)).numpy())
    means = np.array([each.mean() for each in divergences])
    half = stats.t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / len(means) ** 0.5
    return {
        "kl": float(f"{means.mean():.3g}"),
        "low": float(f"{max(0.0, means.mean() - half):.3g}"),
        "high": float(f"{means.mean() + half:.3g}"),
        "kl_99": float(f"{np.percentile(np.concatenate(divergences), 99):.3g}"),
        "same": round(float(np.concatenate(same).mean()), 4),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
