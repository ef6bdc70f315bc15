"""Options of GPQA, for lm-eval's `!function`."""

import random

import datasets

RIGHT = "Correct Answer"
WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def with_options(documents: datasets.Dataset) -> datasets.Dataset:
    """Add `choices`, four texts in an order that depends on the question alone, and `answer`, A to D."""
    return documents.map(_lettered)


def _lettered(doc: dict[str, str | None]) -> dict[str, object]:
    texts = [" ".join((doc[name] or "").split()) for name in (RIGHT, *WRONG)]
    order = random.Random(str(doc["Question"])).sample(range(4), 4)
    return {"choices": [texts[index] for index in order], "answer": "ABCD"[order.index(0)]}
