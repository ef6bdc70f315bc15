"""Scoring of HumanEval in the sandbox, for lm-eval's `!function`."""

from specbench.tasks.sandbox import passes
from specbench.tasks.sandbox.unit_tests import of_prompt


def score(doc: dict[str, str], results: list[list[str]]) -> dict[str, float]:
    """`pass@1`: the share of the document's programs that pass its tests in the sandbox."""
    tests = of_prompt(doc["prompt"], doc["test"], doc["entry_point"])
    passed = [passes(program, tests, seconds=5.0).passed for program in results[0]]
    return {"pass@1": sum(passed) / len(passed)}


def build_programs(resps: list[list[str]], docs: list[dict[str, str]]) -> list[list[str]]:
    """Put the prompt before every response of each document."""
    return [[doc["prompt"] + response for response in responses] for responses, doc in zip(resps, docs, strict=True)]


def build_programs_of_block(resps: list[list[str]], docs: list[dict[str, str]]) -> list[list[str]]:
    """The same of responses that go on with a block of code, up to where it is closed."""
    return build_programs([[response.partition("```")[0] for response in responses] for responses in resps], docs)
