"""Few-shot examples and scoring of MBPP, for lm-eval's `!function`."""

from typing import Any

import datasets

from specbench.tasks.sandbox import passes
from specbench.tasks.sandbox.unit_tests import of_reference


def without_the_first(documents: datasets.Dataset) -> datasets.Dataset:
    """All but problem 1 of the split for few-shot examples: the data set's paper uses problems 2, 3 and 4."""
    return documents.filter(lambda doc: doc["task_id"] != 1)


def score(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """`pass@1`: 1.0 if the program passes the document's tests in the sandbox, otherwise 0.0."""
    tests = of_reference(doc["code"], doc["test_list"])
    return {"pass@1": float(passes(results[0], tests, seconds=5.0).passed)}
