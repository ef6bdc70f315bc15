"""Scoring of pocket_mmlu, for lm-eval's `!function`."""

import re

LETTERS = "ABCD"


def chosen(doc: dict[str, str], text: str) -> str | None:
    """The letter of the option in the first answer that a text gives; None if that names no option.

    An option is named by its letter in brackets or by its whole text.
    """
    answer = re.search(r"answer is (.+?)\.?\s*$", text, re.MULTILINE)
    if not answer:
        return None
    named = [letter for letter in LETTERS if answer[1] in (f"({letter})", doc[letter])]
    return named[0] if named else None


def score_choice(doc: dict[str, str], results: list[str]) -> dict[str, int]:
    """`exact_match`: 1 if the answer names the right option, otherwise 0."""
    return {"exact_match": int(chosen(doc, results[0]) == doc["answer"])}
