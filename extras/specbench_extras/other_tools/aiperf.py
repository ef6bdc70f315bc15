"""AIPerf's exports: records of requests (profile_export.jsonl), and summaries as CSV or JSON."""

import csv
import io
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import Field

from specbench.base.untrusted import brief
from specbench.config import UserError, validated
from specbench.results.importers import conditions
from specbench.results.importers.foreign import LARGEST, Entry, Figures, Row, entries, text_of
from specbench_extras.other_tools.kinds import check_kind

SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
# Its metrics, and ours: its inter-token latency is an average within each request, from the number of tokens.
LATENCIES = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2el"}
RATES = {"request_throughput": "request_throughput", "output_token_throughput": "output_throughput"}
STATISTICS = {"avg": "mean", "p50": "median", "p99": "p99"}
NAMED = ("spec", "draft", "accept")
HEAD = re.compile(r"^\ufeff?Metric,(avg|Value)", re.I)


class Metadata(Entry):
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False
    request_start_ns: int | None = None
    request_end_ns: int | None = None


class Record(Entry):
    metadata: Metadata
    metrics: dict[str, Any] = Field(default_factory=dict)
    error: Any = None


def read(path: Path) -> list[Figures]:
    """The figures in an export. A document is a request, by its place; those of the warm-up are left out."""
    text, digest = text_of(path)
    figures = Figures(path, digest, path.stem)
    if HEAD.match(text):
        figures.totals.append(_summary(path, dict(_table(text))))
        return [figures]
    objects = entries(path, text)
    for _, entry in objects:
        check_kind(path, entry, "aiperf")
    if "metadata" not in objects[0][1] or "metrics" not in objects[0][1]:
        figures.totals.append(_summary(path, {name: v for name, v in objects[0][1].items() if isinstance(v, dict)}))
        figures.conditions = conditions.of(_config(objects[0][1]))
        return [figures]
    _records(figures, [(where, validated(Record, entry, where)) for where, entry in objects])
    return [figures]


def _records(figures: Figures, records: list[tuple[str, Record]]) -> None:
    warm = sum(record.metadata.benchmark_phase != "profiling" for _, record in records)
    kept = [(where, record) for where, record in records if record.metadata.benchmark_phase == "profiling"]
    if not kept:
        raise UserError(f"{figures.path} has no request of the phase `profiling`")
    unread: set[str] = set()
    spans: list[tuple[int, int]] = []
    for doc_id, (where, record) in enumerate(kept):
        metrics = record.metrics
        unread |= {name for name in metrics if any(part in name for part in NAMED)}
        sample: Row = {"prompt_tokens": _count(metrics, "input_sequence_length")}
        if record.error is not None or record.metadata.was_cancelled:
            why = brief(record.error) if record.error is not None else "cancelled"
            figures.add("aiperf", doc_id, 0, sample | {"finish": "error", "error": f"{where}: {why}"}, [])
            continue
        thought, tokens = _count(metrics, "reasoning_token_count"), _count(metrics, "output_sequence_length")
        if tokens is None and (answer := _count(metrics, "output_token_count")) is not None:
            tokens = answer + (thought or 0)
        first, whole = _seconds(metrics, "time_to_first_token"), _seconds(metrics, "request_latency")
        sample |= {"new_tokens": tokens, "thought_tokens": thought, "prefill_seconds": first}
        if whole is not None and first is not None and whole >= first:
            sample["decode_seconds"] = whole - first
        else:
            sample["wall_seconds"] = whole
        figures.add("aiperf", doc_id, 0, sample, [])
        start, end = record.metadata.request_start_ns, record.metadata.request_end_ns
        if start is not None and end is not None:
            spans.append((start, end))
    spans.sort()
    if any(later[0] < former[1] for former, later in pairwise(spans)):
        figures.warnings.append(
            f"{figures.path.name}: requests ran together: each one's seconds depend on the others; use --concurrency 1 "
            "for the speed of a single text"
        )
    if warm:
        figures.warnings.append(f"{figures.path.name}: {warm} requests of the warm-up are left out")
    if unread:
        figures.warnings.append(f"{figures.path.name} tells {brief(', '.join(sorted(unread)))}, which is not read")


def _table(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The rows of a summary's tables, by the tag of a metric: its unit, and its statistics by name."""
    rows: list[tuple[str, dict[str, Any]]] = []
    heads: list[str] = []
    for cells in csv.reader(io.StringIO(text.lstrip("\ufeff"))):
        if cells and cells[0] == "Metric":
            heads = [cell.lower() for cell in cells[1:]]
        elif cells and heads and (named := re.fullmatch(r"(.+?)(?: \(([^()]*)\))?", cells[0])):
            values = {head: _number(cell) for head, cell in zip(heads, cells[1:], strict=False)}
            tag = named[1].lower().replace(" ", "_")
            rows.append((tag, {"unit": named[2] or "", "avg": values.get("value"), **values}))
        else:
            heads = []
    return rows


def _number(cell: str) -> float | None:
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None


def _summary(path: Path, metrics: dict[str, Any]) -> Row:
    """The server's figures under the names that `vllm bench serve` gives them. Raises UserError if there are none."""
    totals: Row = {}
    for tag, name in RATES.items():
        value = metrics.get(tag, {}).get("avg")
        totals |= {name: value} if _is_number(value) else {}
    for tag, name in LATENCIES.items():
        unit = SECONDS.get(str(metrics.get(tag, {}).get("unit")))
        for statistic, ours in STATISTICS.items():
            value = metrics.get(tag, {}).get(statistic)
            totals |= {f"{ours}_{name}_ms": value * unit * 1000} if unit and _is_number(value) else {}
    if not totals:
        raise UserError(f"{path} has neither throughput nor latencies; is it an export of AIPerf?")
    return totals


def _config(entry: Row) -> Row:
    """The settings of a run that its summary holds, under the names of their last keys."""
    found: Row = {}

    def gather(values: dict[str, Any], depth: int) -> None:
        for key, value in values.items():
            if isinstance(value, dict) and depth < 4:
                gather(value, depth + 1)
            elif isinstance(value, str | int | float):
                found.setdefault(key, value)
            elif key == "model_names" and isinstance(value, list):
                found["model"] = ", ".join(map(str, value))

    config = entry.get("input_config")
    gather(config if isinstance(config, dict) else {}, 0)
    return found | ({"max_concurrency": found["concurrency"]} if "concurrency" in found else {})


def _count(metrics: dict[str, Any], name: str) -> int | None:
    value = _value(metrics, name)[0]
    return int(value) if value is not None and 0 <= value <= LARGEST else None


def _seconds(metrics: dict[str, Any], name: str) -> float | None:
    value, unit = _value(metrics, name)
    scale = SECONDS.get(unit)
    if value is not None and scale is None:
        raise UserError(f"the unit of {name} is {unit!r}, which is none of time; export the file again")
    return value * scale if value is not None and scale and value >= 0 else None


def _value(metrics: dict[str, Any], name: str) -> tuple[float | None, str]:
    metric = metrics.get(name)
    if not isinstance(metric, dict) or not _is_number(metric.get("value")):
        return None, ""
    return float(metric["value"]), str(metric.get("unit", ""))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
