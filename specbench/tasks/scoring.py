"""Scores of texts that were generated elsewhere, by lm-eval's own filters, metrics and aggregation."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

_BOOTSTRAP_ITERATIONS = 1000  # used only for metrics that lm-eval has no closed formula for


@dataclass(frozen=True)
class Score:
    """One metric under one lm-eval filter: of a document, or of all scored documents of the task (`doc_id` None).
    `stderr` is lm-eval's standard error of the aggregate, None if it defines none."""

    task: str
    doc_id: int | None
    metric: str
    filter: str
    value: float
    stderr: float | None


def scores_of(name: str, task: Any, answers: Sequence[tuple[Any, str]]) -> tuple[list[Score], list[str]]:
    """Scores of the lm-eval Task `name`: of each pair of an Instance and its text, then the aggregates.

    Also returns a line for each answer that could not be scored, which counts as wrong. Replaces the Instances that the
    Task holds. Values that are not single numbers appear in the aggregate only.
    """
    from lm_eval.api.metrics import mean, stderr_for_metric

    replayed = [_replayed(instance, text) for instance, text in answers]
    task._instances = replayed  # lm-eval filters what the task holds; it offers no other way in
    task.apply_filters()
    documents: list[Score] = []
    unscored: list[str] = []
    columns: dict[tuple[str, str], list[Any]] = {}
    for label in replayed[0].filtered_resps:
        jobs = [(instance.doc, [instance.filtered_resps[label]]) for instance in replayed]
        results = list(_results(task, jobs))
        for instance, values in zip(replayed, results, strict=True):
            if not isinstance(values, dict):  # a `timed.GaveUp`
                unscored.append(f"{name}: scoring document {instance.doc_id} {values.reason}; it counts as wrong")
                values = _wrong(task, results)
            for metric, value in values.items():
                columns.setdefault((metric, label), []).append(value)
                if isinstance(value, Real):
                    documents.append(Score(name, instance.doc_id, metric, label, float(value), None))
    aggregates = []
    for (metric, label), values in columns.items():
        aggregate = task.aggregation().get(metric, mean)
        stderr = stderr_for_metric(aggregate, _BOOTSTRAP_ITERATIONS) if len(values) > 1 else None
        error = None if stderr is None else float(stderr(values))
        aggregates.append(Score(name, None, metric, label, float(aggregate(values)), error))
    return documents + aggregates, unscored


def _results(task: Any, jobs: Sequence[tuple[Any, list[Any]]]) -> Iterable[Any]:
    """lm-eval's results of each job; those that a task's own function computes are limited in time and memory."""
    if callable(task.config.process_results) and not task.config.unsafe_code:  # the sandbox has limits of its own
        from specbench.tasks import timed

        return timed.each(task.process_results, jobs)
    return itertools.starmap(task.process_results, jobs)


def _wrong(task: Any, results: Sequence[Any]) -> dict[str, float]:
    """What a wrong answer has next to these results: 0 for each metric that is a single number."""
    others = [values for values in results if isinstance(values, dict)]
    if not others:
        return dict.fromkeys(task.aggregation(), 0.0)
    return {metric: 0.0 for metric, value in others[0].items() if isinstance(value, Real)}


def _replayed(instance: Any, text: str) -> Any:
    """A copy of an lm-eval Instance that has `text` as its only response."""
    from lm_eval.api.instance import Instance

    return Instance(
        request_type=instance.request_type,
        doc=instance.doc,
        arguments=instance.arguments,
        idx=instance.idx,
        metadata=instance.metadata,
        resps=[text],
    )
