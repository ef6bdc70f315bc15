"""Scoring of pocket_ruler, for lm-eval's `!function`."""

import json


def score_values(doc: dict[str, str], results: list[str]) -> dict[str, float]:
    """`contains`: the share of the expected values that occur in the answer, in upper or lower case, from 0 to 1.

    As in RULER's string match, a value inside a longer word or number counts.
    """
    values = json.loads(doc["values"])
    text = results[0].lower()
    return {"contains": sum(value.lower() in text for value in values) / len(values)}
