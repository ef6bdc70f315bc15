"""Results of SpecForge's bench_eagle3: each benchmark a task, each configuration of the server a method."""

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from specbench.config import UserError, validated
from specbench.results.importers import conditions
from specbench.results.importers.foreign import Count, Entry, Figures, Row, entries, text_of
from specbench_extras.other_tools.kinds import check_kind

NEAR = 0.02  # of a whole number of verifications, which a rounded mean may miss
SETTINGS = ("batch_size", "steps", "topk", "num_draft_tokens")


class Metrics(Entry):
    latency: float | None = None
    output_throughput: float | None = None
    accept_length: float | None = Field(default=None, ge=1, le=2**20)
    num_questions: int | None = None
    per_request_accept_length: list[float] | None = None
    per_request_output_length: list[Count] | None = None

    @model_validator(mode="after")
    def _alike(self) -> "Metrics":
        lengths, sizes = self.per_request_accept_length, self.per_request_output_length
        if lengths is not None and sizes is not None and len(lengths) != len(sizes):
            raise ValueError("per_request_accept_length and per_request_output_length must be as many")
        return self


def read(path: Path) -> list[Figures]:
    """The configurations in a file, named by their settings if there are several; several `metrics` are passes.

    `accept_length` is a mean over requests, or in older versions the tokens over all verifications: it is kept as the
    server's average. Where each request's is told, its verifications follow from its tokens.
    """
    text, digest = text_of(path)
    ((where, report), *more) = entries(path, text)
    check_kind(path, report, "specforge")
    if more:
        raise UserError(f"{path} holds several reports; give each a file of its own")
    benchmarks = {name: runs for name, runs in report.items() if isinstance(runs, list)}
    names = {_name(run) for runs in benchmarks.values() for run in runs if isinstance(run, dict)}
    by_name: dict[str, Figures] = {}
    for task, runs in benchmarks.items():
        for run in runs:
            if not isinstance(run, dict) or not isinstance(run.get("metrics"), list):
                raise UserError(f"{where}: {task} has an entry without `metrics`")
            name = path.stem if len(names) == 1 else f"{path.stem} {_name(run)}"
            figures = by_name.setdefault(name, Figures(path, digest, name))
            figures.conditions = conditions.of({"model": report["model"], "max_concurrency": run.get("batch_size", 1)})
            for repeat, values in enumerate(run["metrics"]):
                _add(figures, task, repeat, validated(Metrics, values, f"{where}, {task}"), len(benchmarks) == 1)
    return list(by_name.values())


def _name(run: Row) -> str:
    return " ".join(f"{name}={run[name]}" for name in SETTINGS if name in run)


def _add(figures: Figures, task: str, repeat: int, metrics: Metrics, alone: bool) -> None:
    sizes, lengths = metrics.per_request_output_length, metrics.per_request_accept_length
    for doc_id, (tokens, length) in enumerate(zip(sizes or [], lengths or [], strict=False)):
        sample: Row = {"new_tokens": tokens} | _rounds(tokens, length)
        figures.add(task, doc_id, repeat, sample, [])
    if alone or not sizes:
        totals: Row = {} if metrics.output_throughput is None else {"output_throughput": metrics.output_throughput}
        if metrics.accept_length is not None and not sizes:
            totals["spec_decode_acceptance_length"] = metrics.accept_length
        if totals and not (figures.totals and not alone):
            figures.totals.append(totals)
        elif totals:
            figures.warnings.append(
                f"{figures.path.name}: the totals of {task} are not read: a method has them of one benchmark; give "
                "each benchmark a file"
            )


def _rounds(tokens: int, length: Any) -> Row:
    """The verifications of a text, if its tokens over them are `length`."""
    if not tokens or not 1 <= length <= tokens:
        return {}
    rounds = tokens / length
    if abs(rounds - round(rounds)) > NEAR * rounds:
        return {}
    known = round(rounds)
    return {"verify_rounds": known, "accepted_tokens": max(0, tokens - 1 - known), "evidence": "histogram"}
