"""Scoring of HumanEval in the sandbox, for lm-eval's `!function`."""

from specbench.tasks.sandbox import passes


def pass_at_1(references: list[str], predictions: list[list[str]]) -> dict[str, float]:
    """`pass@1`: the share of each document's programs that pass, averaged over documents.

    `references` holds the tests with their call, one text a document; `predictions` one or more programs for each.
    """
    shares = []
    for tests, programs in zip(references, predictions, strict=True):
        passed = [passes(f"{program}\n\n{tests}", seconds=5.0).passed for program in programs]
        shares.append(sum(passed) / len(passed))
    return {"pass@1": sum(shares) / len(shares)}


def build_programs(resps: list[list[str]], docs: list[dict[str, str]]) -> list[list[str]]:
    """Put the prompt before every response of each document."""
    return [[doc["prompt"] + response for response in responses] for responses, doc in zip(resps, docs, strict=True)]
