"""Which tool wrote a file: known by several of its keys, never by one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.config import UserError

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of file. `tool` is the name under which it is imported; None if no importer reads it."""

    tool: str | None
    what: str
    is_one: Callable[[Entry], bool]


def _has(*names: str) -> Callable[[Entry], bool]:
    return lambda entry: all(name in entry for name in names)


def _sglang(entry: Entry) -> bool:
    return "completed" in entry and bool(entry.keys() & {"mean_e2e_latency_ms", "total_output_tokens_retokenized"})


def _aiperf(entry: Entry) -> bool:
    metadata = entry.get("metadata")
    own = {"benchmark_phase", "session_num", "x_request_id", "request_start_ns", "worker_id"}
    return isinstance(metadata, dict) and "metrics" in entry and len(own & metadata.keys()) > 1


def _aiperf_summary(entry: Entry) -> bool:
    metrics = [value for value in entry.values() if isinstance(value, dict) and {"unit", "avg"} <= value.keys()]
    return "request_latency" in entry and len(metrics) > 1


def _guidellm(entry: Entry) -> bool:
    benchmarks = entry.get("benchmarks")
    return isinstance(benchmarks, list) and all(isinstance(one, dict) and "metrics" in one for one in benchmarks)


def _answers(entry: Entry) -> bool:
    choices = entry.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return "question_id" in entry and isinstance(first, dict) and {"turns", "new_tokens"} <= first.keys()


def _specforge(entry: Entry) -> bool:
    runs = [value for value in entry.values() if isinstance(value, list)]
    return "model" in entry and any(isinstance(one, dict) and "metrics" in one for value in runs for one in value)


def _accepted(entry: Entry) -> bool:
    return "generated_token_ids" in entry and any(key == "acc" or key.startswith("acc_") for key in entry)


def _responses(entry: Entry) -> bool:
    return "choices" in entry and bool(entry.keys() & {"usage", "object", "created"})


KINDS = (
    Kind("aiperf", "AIPerf's records of requests (profile_export.jsonl)", _aiperf),
    Kind("aiperf", "AIPerf's summary (profile_export_aiperf.json)", _aiperf_summary),
    Kind("guidellm", "a report of guidellm", _guidellm),
    Kind("sglang", "a result of SGLang's bench_serving", _sglang),
    Kind("spec-bench", "answers of Spec-Bench or EAGLE", _answers),
    Kind("speed-bench", "responses of SPEED-Bench's measurement", _has("question_id", "acceptance_lengths")),
    Kind("speed-bench", "acceptance lengths of SPEED-Bench's measurement", _has("Acceptance_Length_Histogram")),
    Kind("specforge", "a result of SpecForge's bench_eagle3", _specforge),
    Kind("vllm", "accepted lengths of vLLM's texts", _accepted),
    Kind(None, "a result of SGLang's bench_one_batch", _has("batch_size", "overall_throughput")),
    Kind(None, "a summary of GenAI-Perf", _has("request_throughput", "input_config", "service_kind")),
    Kind(None, "a profile of GenAI-Perf (profile_export.json)", _has("experiments", "endpoint")),
    Kind(None, "a result of llama-bench", _has("build_commit", "avg_ts")),
    Kind(None, "results of lm-evaluation-harness", _has("results", "configs")),
    Kind(None, "a report of trtllm-bench", _has("engine", "performance")),
    Kind("vllm", "a result of `vllm bench serve`", _has("request_throughput")),
    Kind("vllm", "responses of an engine", _responses),
)


def kind_of(entry: Entry) -> Kind | None:
    """The kind of a file by its first entry; None if no tool is known that writes such."""
    return next((kind for kind in KINDS if kind.is_one(entry)), None)


def check_kind(path: Path, entry: Entry, tool: str) -> None:
    """Raise UserError if a file is of another tool than the one that it should be of."""
    kind = kind_of(entry)
    if kind and kind.tool != tool:
        how = f"`specbench import {kind.tool}` reads it" if kind.tool else "no importer reads it"
        raise UserError(f"{path} is {kind.what}; {how}")
    if kind is None and tool in ("aiperf", "guidellm", "sglang", "speed-bench", "specforge"):
        keys = ", ".join(list(entry)[:6])
        raise UserError(f"{path} is no file of {tool} that is known (its first keys: {keys[:120] or 'none'})")
