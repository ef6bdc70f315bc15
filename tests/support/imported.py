"""Other tools' files as tests write them, and what a comparison reads from the runs that are made of them."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from specbench.analysis import compare, pooled
from specbench.results.importers import import_files
from specbench.results.stored import StoredRun

import_spec_bench = partial(import_files, "spec-bench")
import_vllm = partial(import_files, "vllm")


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(*folders):
    """The summary of runs by task and method."""
    summed = compare.summary(pooled.measured([StoredRun(folder) for folder in folders]))
    return summed.set_index(["task", "method"])


def unknown(row, *names):
    return [name for name in names if not math.isnan(row[name])] == []


def answer(question, tokens, seconds, lengths, *, category="writing", model="eagle-float16", texts=None):
    """A line of a Spec-Bench answer file; `tokens` and `seconds` have an entry per turn."""
    turns = texts or ["words"] * len(tokens)
    choice = {"index": 0, "turns": turns, "decoding_steps": [len(lengths)], "new_tokens": tokens}
    choice |= {"wall_time": seconds, "accept_lengths": lengths}
    row = {"question_id": question, "category": category, "answer_id": "Xy", "model_id": model, "tstamp": 1.7e9}
    return row | {"choices": [choice]}


def _spec_bench(folder: Path) -> Path:
    files = [
        jsonl(folder / f"{name}.jsonl", *(answer(i, [9], [s], [3, 3, 3]) for i in (81, 82, 83)))
        for name, s in (("eagle", 0.5), ("plain", 1.0))
    ]
    return import_spec_bench(files[:1], files[1], out=folder / "run")


CHOICE = {"index": 0, "message": {"content": "words"}, "finish_reason": "length", "stop_reason": None}
# A response of vLLM without drafts on record.
PLAIN_RESPONSE = {
    "id": "a",
    "object": "chat.completion",
    "model": "m",
    "usage": {"prompt_tokens": 7, "completion_tokens": 9},
    "choices": [CHOICE],
    "metrics": {"time_to_first_token_ms": 9.0, "generation_time_ms": 90.0},
}


def _vllm(folder: Path) -> Path:
    """Responses without drafts on record, one of which failed."""
    row = PLAIN_RESPONSE
    return import_vllm([jsonl(folder / "mtp.jsonl", row, {"error": {"message": "no"}})], out=folder / "run")


def _bench(folder: Path) -> Path:
    row = {"date": "20260101-000000", "backend": "vllm", "model_id": "m", "max_concurrency": 1, "completed": 2}
    row |= {"request_throughput": 1.0}
    row |= {"input_lens": [7, 8], "output_lens": [3, 1], "ttfts": [0.1, 0.1], "itls": [[0.1, 0.2], []]}
    return import_vllm(
        [jsonl(folder / "mtp.json", row | {"generated_texts": ["a", "b"], "errors": ["", ""]})], out=folder / "run"
    )


def _scrape(folder: Path) -> Path:
    names = {"num_drafts": 4, "num_draft_tokens": 12, "num_accepted_tokens": 6}
    lines = [f'vllm:spec_decode_{name}_total{{engine="0",model_name="m"}} {value}.0' for name, value in names.items()]
    (folder / "eagle.txt").write_text("\n".join(lines) + "\n")
    return import_vllm([folder / "eagle.txt"], out=folder / "run")


def _lengths(folder: Path) -> Path:
    row = {"prompt_token_ids": [1, 2], "generated_token_ids": [3, 4, 5, 6], "acc_mtp": [1, 3]}
    return import_vllm([jsonl(folder / "a.jsonl", row, row)], out=folder / "run")


def of_tools() -> dict[str, dict[str, Any]]:
    """A small file of each tool that is read as JSON, but for Spec-Bench's and vLLM's, as its only entry."""
    sglang: dict[str, Any] = {
        "completed": 1,
        "mean_e2e_latency_ms": 5.0,
        "request_throughput": 2.0,
        "accept_length": 2.5,
    }
    sglang |= {"input_lens": [5], "output_lens": [4], "ttfts": [0.1], "itls": [[0.1] * 3], "max_concurrency": 1}
    steps = {"verify_lengths": [4, 4], "accept_lengths": [1, 2]}
    sglang["speculative_decoding_stats"] = {"requests": [{"request_index": 0, "stats": steps}]}
    times = {"time_to_first_token": {"value": 5.0, "unit": "ms"}, "request_latency": {"value": 9.0, "unit": "ms"}}
    metadata = {"session_num": 0, "benchmark_phase": "profiling", "request_start_ns": 1, "request_end_ns": 2}
    aiperf = {"metadata": metadata, "metrics": times | {"output_sequence_length": {"value": 4, "unit": "tokens"}}}
    request = {"prompt_tokens": 4, "output_tokens": 9, "time_to_first_token_ms": 1.0, "inter_token_latency_ms": 1.0}
    benchmark = {"metrics": {"requests_per_second": {"successful": {"mean": 1.1}}}, "config": {"rate": 2.0}}
    guidellm = {"args": {"model": "m"}, "benchmarks": [benchmark | {"requests": {"successful": [request]}}]}
    lengths = {"acceptance_lengths": [[3, 3], [1]], "choices": [{"index": 0, "turns": ["five"]}]}
    metrics = {"accept_length": 2.0, "per_request_accept_length": [2.0], "per_request_output_length": [8]}
    return {
        "sglang": sglang,
        "aiperf": aiperf,
        "guidellm": guidellm,
        "speed-bench": {"question_id": "a", "category": "b"} | lengths,
        "specforge": {"model": "m", "mtbench": [{"batch_size": 1, "steps": 3, "metrics": [metrics]}]},
    }


def _of_tool(tool: str, folder: Path) -> Path:
    return import_files(tool, [jsonl(folder / "eagle.json", of_tools()[tool])], out=folder / "run")


# A run of each kind of file that other tools write, made in a folder.
KINDS: dict[str, Callable[[Path], Path]] = {
    "spec-bench": _spec_bench,
    "vllm responses": _vllm,
    "vllm bench": _bench,
    "vllm metrics": _scrape,
    "accepted lengths": _lengths,
    **{tool: partial(_of_tool, tool) for tool in of_tools()},
}
