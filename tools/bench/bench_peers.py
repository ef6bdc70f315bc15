"""How fast others decode the same GGUF file: llama.cpp, OpenVINO GenAI and transformers, by turns with specbench.

    python tools/bench/bench_peers.py smollm2 int4 1 2 results/reference/bench-peers-smollm2-int4.json
    python tools/bench/bench_peers.py qwen2.5-coder bfloat16 2 1

A pair whose models are GGUF files, weights in int4 or bfloat16, threads, and documents of each task of `everyday`; the
defaults are those of `make bench`. The weights of all are those of the file: llama.cpp and GenAI read it (in bfloat16
what llama.cpp writes of it); transformers and specbench dequantise it, and in int4 keep its levels. Tokens a second
without the prefill: of each prompt, a text less a text of one token; with one thread by the processor's seconds, which
other processes disturb less. Peers that are not installed are named.
"""

import gc
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benches import Called, Generate, built, decode, race_calls
from jinja2 import Template

from specbench.base import environment
from specbench.base.untrusted import brief, read_mapping
from specbench.config import SUITES, with_weights
from specbench.config import load_pair as read_pair
from specbench.engine.models.gguf_files import gguf_file
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.runtimes import choose

NEW, TASKS, NGRAM, GUESSES = 64, ("reading", "summary", "editing"), 3, 8


def main(
    name: str = "smollm2", bits: str = "int4", threads: str = "1", documents: str = "1", out: str | None = None
) -> int:
    torch.set_num_threads(int(threads))
    pairs, engines = {}, {}
    for runtime in ("static", "llamacpp"):
        try:
            pairs[runtime] = own(name, bits, runtime)
        except Exception as error:
            print(f"without specbench's {runtime}: {error}")
    pair = pairs["static"]
    for runtime, on in pairs.items():
        if runtime == "static" or bits == "int4":
            for method in ("vanilla", "pld", *(["sps"] if "draft" in on.models else [])):
                engines[method, f"specbench {runtime}"] = partial(ours, built(method, on), on)
    for peer in (transformers, llamacpp, genai):
        try:
            engines |= {(method, by): made for method, by, made in peer(pair, name, bits)}
        except Exception as error:
            print(f"without {peer.__name__}: {' '.join(str(error).split())[:160]}")
    prompts = list(chats(pair, int(documents)))
    for generate in engines.values():
        generate(prompts[0], 4)
    gc.collect()
    gc.freeze()
    raced = race_calls(engines, prompts, NEW)
    rows = [
        {
            "method": method,
            "by": by,
            "tokens_per_s": round(float(raced.tokens[method, by].sum() / raced.seconds[method, by].sum()), 1),
            "over_llama_cpp": over(raced, (method, by), ("vanilla", "llama.cpp")),
            "as_its_own_vanilla": sum(map(eq, raced.texts[method, by], raced.texts["vanilla", by])),
        }
        for method, by in engines
    ]
    for row in rows:
        print(row)
    if out:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        facts = {
            "command": f"python tools/bench/bench_peers.py {name} {bits} {threads} {documents}",
            "commit": commit,
            "date": time.strftime("%Y-%m-%d"),
            "machine": environment.describe(pair.device),
            "clock": "processor seconds of the process" if threads == "1" else "seconds",
            "file": pair.hashes["target"].get("file_sha256"),
            "weights": {runtime: on.hashes["target"].get("weights", bits) for runtime, on in pairs.items()},
            "prompts": len(prompts),
            "new_tokens": NEW,
            "engines": rows,
        }
        Path(out).write_text(json.dumps(facts, indent=1) + "\n")
    return 0


def over(raced: Called, mine: tuple[str, str], base: tuple[str, str]) -> list[float] | None:
    """Tokens a second over a base's, with a 95 % interval over prompts."""
    one = raced.speedup(mine, base) if base in raced.texts else None
    return [round(value, 2) for value in (one.value, one.low, one.high)] if one else None


def chats(pair: Pair, documents: int) -> Iterator[list[int]]:
    """Prompts of the suite `everyday`, in the chat template."""
    folder = SUITES / "tasks" / "everyday"
    for at in range(documents):
        for task in TASKS:
            form = read_mapping(folder / f"everyday_{task}.yaml", tags=True)["doc_to_text"]
            document = json.loads((folder / f"{task}_test.jsonl").read_text().splitlines()[at])
            chat = [{"role": "user", "content": Template(form).render(document)}]
            text = pair.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            yield pair.tokenizer(text)["input_ids"]


def own(name: str, bits: str, runtime: str) -> Pair:
    """The pair at a runtime: llama.cpp reads the file as it is; a draft of other weights is the same at both."""
    spec = read_pair(name)
    if spec.draft and spec.draft.model == spec.target.model:
        spec = spec.model_copy(update={"draft": None})
    if bits == "int4" and runtime != "llamacpp":
        spec = with_weights(spec, ["int4"])
    pair = load_pair(spec, "cpu", "auto" if runtime == "llamacpp" else "bfloat16", runtime=runtime)
    return replace(pair, runtime=choose.runtime(runtime, pair))


def ours(method: Any, pair: Pair, prompt: list[int], count: int) -> list[int]:
    return decode(method, pair, prompt, count=count).tokens


def transformers(pair: Pair, name: str, bits: str) -> Iterator[tuple[str, str, Generate]]:
    """transformers' `generate`, with prompt lookup, and assisted where the pair has a draft."""
    model, ends = pair.models["target"], sorted(pair.eos_ids)

    def generate(prompt: list[int], count: int, **more: Any) -> list[int]:
        ids = torch.tensor([prompt])
        asked = {"do_sample": False, "max_new_tokens": count, "eos_token_id": ends, "pad_token_id": ends[0]}
        with torch.inference_mode():
            made = model.generate(ids, attention_mask=torch.ones_like(ids), repetition_penalty=1.0, **asked, **more)
        return made[0, len(prompt) :].tolist()

    yield "vanilla", "transformers", generate
    yield "pld", "transformers", partial(generate, prompt_lookup_num_tokens=GUESSES, max_matching_ngram_size=NGRAM)
    if "draft" in pair.models:
        yield "sps", "transformers", partial(generate, assistant_model=pair.models["draft"])


def llamacpp(pair: Pair, name: str, bits: str) -> Iterator[tuple[str, str, Generate]]:
    """llama-cpp-python's own generation, with its prompt lookup; it has none with a draft model."""
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    lookup = LlamaPromptLookupDecoding(max_ngram_size=NGRAM, num_pred_tokens=GUESSES)
    for method, draft in (("vanilla", None), ("pld", lookup)):
        threads = torch.get_num_threads()
        model = llama_cpp.Llama(
            str(file(name, bits)),
            n_ctx=1024,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=True,
            draft_model=draft,
            verbose=False,
        )

        def generate(prompt: list[int], count: int, model: Any = model) -> list[int]:
            model.reset()
            text: list[int] = []
            for token in model.generate(prompt, temp=0.0, repeat_penalty=1.0):
                text.append(token)
                if token in pair.eos_ids or len(text) == count:
                    break
            return text

        yield method, "llama.cpp", generate


def genai(pair: Pair, name: str, bits: str) -> Iterator[tuple[str, str, Generate]]:
    """OpenVINO GenAI on the file, with prompt lookup, and with a draft where the pair has one."""
    import openvino as ov
    import openvino_genai as peer

    read = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
    ways: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "vanilla": ({}, {}),
        "pld": ({"prompt_lookup": True}, {"num_assistant_tokens": GUESSES, "max_ngram_size": NGRAM}),
    }
    if "draft" in pair.models:
        try:
            draft = peer.draft_model(str(gguf_file(read_pair(name).draft)), "CPU", **read)
            ways["sps"] = ({"draft_model": draft}, {"num_assistant_tokens": 4})
        except RuntimeError as error:
            print(f"without a draft in GenAI: {brief(error)}")
    for method, (more, asked) in ways.items():
        pipeline = peer.LLMPipeline(str(file(name, bits)), "CPU", **read, **more)
        config = peer.GenerationConfig()
        config.do_sample, config.apply_chat_template, config.stop_token_ids = False, False, set(pair.eos_ids)
        for key, value in asked.items():
            setattr(config, key, value)

        def generate(prompt: list[int], count: int, pipeline: Any = pipeline, config: Any = config) -> list[int]:
            config.max_new_tokens = count
            ids, ones = (ov.Tensor(np.array([row], np.int64)) for row in (prompt, [1] * len(prompt)))
            return list(pipeline.generate(peer.TokenizedInputs(ids, ones), config).tokens[0])

        yield method, "GenAI", generate


def file(name: str, bits: str) -> Path:
    """The pair's target as it is, or what llama.cpp writes of it in bfloat16."""
    whole = gguf_file(read_pair(name).target)
    if bits == "int4":
        return whole
    from specbench_extras.llamacpp.library import rewritten

    return rewritten(whole, read_pair(name).target.sha256 or "", "BF16")


if __name__ == "__main__":
    if importlib.util.find_spec("llama_cpp") is None:
        print("without llama.cpp and GenAI, if they are not installed: make bench-peers")
    sys.exit(main(*sys.argv[1:]))
