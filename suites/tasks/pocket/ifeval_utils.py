"""Scoring of pocket_ifeval, for lm-eval's `!function`: one check per kind of constraint.

A check reads a text and the arguments of its constraint, nothing else. It is strict: the text is judged as it is,
except for white space around it. Only whole words count, in upper or lower case.
"""

import json
import re
from collections.abc import Callable, Sequence


def _count(word: str, text: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))


def existence(text: str, keywords: Sequence[str]) -> bool:
    return all(_count(word, text) for word in keywords)


def forbidden_words(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(_count(word, text) for word in forbidden_words)


def frequency(text: str, keyword: str, frequency: int) -> bool:
    return _count(keyword, text) == frequency


def lower_case(text: str) -> bool:
    return text.islower()


def capitals(text: str) -> bool:
    return text.isupper()


def number_sentences(text: str, num_sentences: int) -> bool:
    """A sentence ends with `.`, `!` or `?` before white space or the end; words after the last one make another."""
    return len([part for part in re.split(r"(?<=[.!?])\s+", text) if part]) == num_sentences


def number_bullets(text: str, num_bullets: int) -> bool:
    """Bullet points are lines of `*`, a space and words."""
    return len(re.findall(r"^[ \t]*\* +\S", text, re.MULTILINE)) == num_bullets


def comma_separated(text: str, num_items: int) -> bool:
    items = text.split(",")
    return len(items) == num_items and all(item.strip() for item in items)


def no_comma(text: str) -> bool:
    return "," not in text


def starts(text: str, start_phrase: str) -> bool:
    return re.match(rf"{re.escape(start_phrase)}(?!\w)", text) is not None


def ends(text: str, end_phrase: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(end_phrase)}$", text) is not None


def quotation(text: str) -> bool:
    return len(text) > 2 and text[0] == text[-1] == '"'


def title(text: str, title: str) -> bool:
    return any(marked.strip().lower() == title.lower() for marked in re.findall(r"<<([^\n<>]+)>>", text))


def postscript(text: str, postscript_marker: str) -> bool:
    """The marker begins a line or a sentence that is not the first, and words follow it."""
    return re.search(rf"[.!?\n]\s*{re.escape(postscript_marker)}\s*\w", text) is not None


def json_format(text: str, keys: Sequence[str]) -> bool:
    """The whole text is a JSON object with exactly these keys, each once."""
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except ValueError:
        return False
    return text.startswith("{") and sorted(key for key, _ in pairs) == sorted(keys)


CHECKS: dict[str, Callable[..., bool]] = {
    "keywords:existence": existence,
    "keywords:forbidden_words": forbidden_words,
    "keywords:frequency": frequency,
    "change_case:english_lowercase": lower_case,
    "change_case:english_capital": capitals,
    "length_constraints:number_sentences": number_sentences,
    "detectable_format:number_bullet_lists": number_bullets,
    "detectable_format:comma_separated_items": comma_separated,
    "detectable_format:title": title,
    "detectable_format:json_format": json_format,
    "detectable_content:postscript": postscript,
    "punctuation:no_comma": no_comma,
    "startend:start_checker": starts,
    "startend:end_checker": ends,
    "startend:quotation": quotation,
}


def followed(constraints: str, text: str) -> list[bool]:
    """True for each of `constraints` (JSON as in the documents) that `text` obeys; an empty text obeys none."""
    text = text.strip()
    return [bool(text) and _holds(constraint, text) for constraint in json.loads(constraints)]


def _holds(constraint: dict[str, object], text: str) -> bool:
    arguments = {key: value for key, value in constraint.items() if key != "id"}
    return CHECKS[str(constraint["id"])](text, **arguments)


def score_constraints(doc: dict[str, str], results: list[str]) -> dict[str, object]:
    """`prompt_level_strict_acc`: 1 if all constraints hold, otherwise 0; `inst_level_strict_acc`: each separately."""
    kept = followed(doc["constraints"], results[0])
    return {"prompt_level_strict_acc": int(all(kept)), "inst_level_strict_acc": kept}


def share_of_constraints(documents: Sequence[Sequence[bool]]) -> float:
    """The share of all constraints of all documents that hold, from 0 to 1."""
    kept = [holds for document in documents for holds in document]
    return sum(kept) / len(kept)
