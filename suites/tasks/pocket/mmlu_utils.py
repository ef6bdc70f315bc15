"""Scoring of pocket_mmlu, for lm-eval's `!function`."""

import re

LETTERS = "ABCD"


def chosen(doc: dict[str, str], text: str) -> str | None:
    """The letter of the option that a text gives as its answer, the first time it gives one; None if it names none.

    An option is named by its letter in brackets or by the whole of its text.
    """
    found = re.search(r"answer is (.+?)\.?\s*$", text, re.MULTILINE)
    if not found:
        return None
    named = [letter for letter in LETTERS if found[1] in (f"({letter})", doc[letter])]
    return named[0] if named else None


def score_choice(doc: dict[str, str], results: list[str]) -> dict[str, int]:
    """`exact_match`: 1 if the answer names the right option, else 0."""
    return {"exact_match": int(chosen(doc, results[0]) == doc["answer"])}
