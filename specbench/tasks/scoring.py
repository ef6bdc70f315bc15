"""Scores of texts that were generated elsewhere, by lm-eval's own filters, metrics and aggregation."""

from collections.abc import Sequence
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


def scores_of(name: str, task: Any, answers: Sequence[tuple[Any, str]]) -> list[Score]:
    """Scores of the lm-eval Task `name`: of each pair of an Instance and its text, then the aggregates.

    Replaces the Instances that the Task holds. Values that are not single numbers appear in the aggregate only.
    """
    from lm_eval.api.metrics import mean, stderr_for_metric

    replayed = [_replayed(instance, text) for instance, text in answers]
    task._instances = replayed  # lm-eval filters what the task holds; it offers no other way in
    task.apply_filters()
    documents: list[Score] = []
    columns: dict[tuple[str, str], list[Any]] = {}
    for label in replayed[0].filtered_resps:
        for instance in replayed:
            for metric, value in task.process_results(instance.doc, [instance.filtered_resps[label]]).items():
                columns.setdefault((metric, label), []).append(value)
                if isinstance(value, Real):
                    documents.append(Score(name, instance.doc_id, metric, label, float(value), None))
    aggregates = []
    for (metric, label), values in columns.items():
        aggregate = task.aggregation().get(metric, mean)
        stderr = stderr_for_metric(aggregate, _BOOTSTRAP_ITERATIONS) if len(values) > 1 else None
        error = None if stderr is None else float(stderr(values))
        aggregates.append(Score(name, None, metric, label, float(aggregate(values)), error))
    return documents + aggregates


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
