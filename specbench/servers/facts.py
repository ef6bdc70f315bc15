"""What a server tells of itself at an address, in short: the settings that change its times, and nothing else."""

import json
import re
from collections.abc import Iterable
from typing import Any

from specbench.base.untrusted import brief

SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)", re.M)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
CACHE = ("enable_prefix_caching", "block_size", "cache_dtype", "num_gpu_blocks", "num_cpu_blocks")
SCHEDULER = ("enable_chunked_prefill", "max_num_batched_tokens", "max_num_seqs")
SETTINGS = (
    *("version", "build_info", "dtype", "total_slots", "max_running_requests", "chunked_prefill_size"),
    *("disable_radix_cache", "speculative_algorithm", "speculative_num_draft_tokens"),
)


def settings(text: str) -> dict[str, Any]:
    """Of a JSON object those entries that are SETTINGS."""
    return _plain(json.loads(text), SETTINGS)


def cache(text: str) -> dict[str, Any]:
    """Of vLLM's metrics its `cache`: whether it keeps prefixes, and the size of its cache."""
    labels = next((labels for name, labels, _ in samples(text) if name == "vllm:cache_config_info"), {})
    return {"cache": {name: labels[name] for name in CACHE if name in labels}} if labels else {}


def scheduler(text: str) -> dict[str, Any]:
    """Of vLLM's configuration, which it tells with VLLM_SERVER_DEV_MODE=1, its `scheduler`: batch size and chunks."""
    values = json.loads(text)
    for key in ("vllm_config", "scheduler_config"):
        values = values.get(key) if isinstance(values, dict) else None
    plain = _plain(values, SCHEDULER)
    return {"scheduler": plain} if plain else {}


def samples(text: str) -> Iterable[tuple[str, dict[str, str], str]]:
    """Name, labels and value of each line of a page in Prometheus' format."""
    for name, labelled, value in SAMPLE.findall(text):
        yield name, dict(LABEL.findall(labelled)), value


def _plain(values: Any, names: Iterable[str]) -> dict[str, Any]:
    """The named entries of an object that are a text, a number or a truth value."""
    known = values if isinstance(values, dict) else {}
    plain = {key: known[key] for key in names if isinstance(known.get(key), str | int | float) and known[key] != ""}
    return {key: brief(value) if isinstance(value, str) else value for key, value in plain.items()}
