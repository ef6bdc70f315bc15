"""Scoring of the pocket tasks whose answers are programs, for lm-eval's `!function`."""

from specbench.tasks.sandbox import passes
from specbench.tasks.sandbox.unit_tests import of_prompt


def score_code(doc: dict[str, str], results: list[str]) -> dict[str, float]:
    """`pass@1`: 1.0 if the completed function passes its tests in the sandbox, otherwise 0.0."""
    tests = of_prompt(doc["prompt"], doc["test"], doc["entry_point"])
    return {"pass@1": float(passes(doc["prompt"] + results[0], tests).passed)}
