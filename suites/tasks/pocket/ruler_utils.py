"""Scoring of pocket_ruler, for lm-eval's `!function`."""

import json


def score_values(doc: dict[str, str], results: list[str]) -> dict[str, float]:
    """`contains`: the share of the expected values that the answer contains, in any case, from 0 to 1 (as RULER's
    string match: a value inside a longer word or number counts)."""
    values = json.loads(doc["values"])
    text = results[0].lower()
    return {"contains": sum(value.lower() in text for value in values) / len(values)}
