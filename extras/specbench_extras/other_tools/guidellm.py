"""Reports of guidellm (JSON): a benchmark is a method, with its requests and the server's figures."""

from pathlib import Path
from typing import Any

from specbench.base.untrusted import brief
from specbench.config import UserError
from specbench.results.importers import conditions
from specbench.results.importers.foreign import LARGEST, Figures, Row, entries, text_of
from specbench_extras.other_tools.kinds import check_kind

RATES = {"requests_per_second": "request_throughput", "output_tokens_per_second": "output_throughput"}
LATENCIES = {"time_to_first_token_ms": "ttft", "time_per_output_token_ms": "", "inter_token_latency_ms": "tpot"}


RENAMED = {"streams": "max_concurrency", "rate": "request_rate", "processor": "tokenizer"}


def read(path: Path) -> list[Figures]:
    """The benchmarks of a report, named after the file, and by their number if there are several."""
    text, digest = text_of(path)
    objects = entries(path, text)
    check_kind(path, objects[0][1], "guidellm")
    report = objects[0][1]
    if not report["benchmarks"]:
        raise UserError(f"{path} holds no benchmarks")
    every = []
    for number, benchmark in enumerate(report["benchmarks"], 1):
        name = path.stem if len(report["benchmarks"]) == 1 else f"{path.stem}-{number}"
        figures = Figures(path, digest, name, totals=[_totals(benchmark["metrics"])])
        figures.conditions = conditions.of(_settings(report) | _settings(benchmark))
        _requests(figures, benchmark.get("requests"))
        every.append(figures)
    return every


def _requests(figures: Figures, requests: Any) -> None:
    """Add the requests of a benchmark: successful ones with their times, others as failures."""
    groups = requests if isinstance(requests, dict) else {"successful": requests}
    place = together = 0
    for kind in ("successful", "incomplete", "errored"):
        listed = groups.get(kind)
        for request in listed if isinstance(listed, list) else []:
            if not isinstance(request, dict):
                raise UserError(f"{figures.path}: a request of {figures.name} is not an object with keys")
            sample: Row = {"prompt_tokens": _tokens(request, "prompt", "input")}
            if kind == "successful":
                sample |= _times(request)
                together += (_number(request.get("concurrency")) or 1) > 1
            else:
                sample |= {"finish": "error", "error": f"{kind}: {brief(request.get('error') or 'not told')}"}
            figures.add("guidellm", place, 0, sample, [])
            place += 1
    limit = figures.conditions.get("concurrency", {}).get("max_concurrency", 1)
    if together or limit != 1:
        figures.warnings.append(
            f"{figures.name}: requests ran together: each one's seconds depend on the others; use --rate-type "
            "synchronous for the speed of a single text"
        )


def _times(request: Row) -> Row:
    tokens = _tokens(request, "output", "output")
    first, each = (_number(request.get(name)) for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    whole, text = _number(request.get("request_latency")), request.get("output") or request.get("text")
    sample: Row = {"new_tokens": tokens, "text": text if isinstance(text, str) else None}
    if first is not None and each is not None and tokens:
        return sample | {"prefill_seconds": first / 1000, "decode_seconds": each * (tokens - 1) / 1000}
    return sample | {"wall_seconds": whole}


def _tokens(request: Row, name: str, newer: str) -> int | None:
    """A number of tokens; newer versions have an object of metrics."""
    metrics = request.get(f"{newer}_metrics")
    value = request.get(f"{name}_tokens")
    if value is None and isinstance(metrics, dict):
        value = metrics.get("total_tokens") or metrics.get("text_tokens")
    return value if isinstance(value, int) and 0 <= value <= LARGEST else None


def _totals(metrics: Any) -> Row:
    totals: Row = {}
    for name, ours in (RATES | LATENCIES).items():
        stats = metrics.get(name) if isinstance(metrics, dict) else None
        stats = stats.get("successful", stats) if isinstance(stats, dict) else {}
        percentiles = stats.get("percentiles") if isinstance(stats, dict) else None
        found = {"mean": stats.get("mean"), "median": stats.get("median")} if isinstance(stats, dict) else {}
        found |= {"p99": percentiles.get("p99")} if isinstance(percentiles, dict) else {}
        for kind, value in found.items():
            column = f"{kind}_{ours}_ms" if name in LATENCIES else ours if kind == "mean" else ""
            if ours and column and (number := _number(value)) is not None:
                totals[column] = number
    return totals


def _settings(values: Row) -> Row:
    """The settings that a report or a benchmark holds, by their last keys."""
    found: Row = {}

    def gather(inner: Any, depth: int) -> None:
        for key, value in inner.items() if isinstance(inner, dict) else ():
            if isinstance(value, dict) and depth < 5:
                gather(value, depth + 1)
            elif isinstance(value, str | int | float):
                found.setdefault(RENAMED.get(str(key), str(key)), value)

    for name in ("args", "config", "scenario", "worker", "backend", "benchmarker"):
        gather(values.get(name), 0)
    return found


def _number(value: Any) -> float | None:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else -1.0
    return number if 0 <= number < 1e12 else None
