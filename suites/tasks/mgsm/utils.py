"""Languages and prompts of MGSM, for lm-eval's `!function`."""

from itertools import chain

import datasets

REPOSITORY = "juletxara/mgsm"
# The word before a question, by language, as in lm-eval's tasks.
QUESTION = {
    "en": "Question:",
    "de": "Frage:",
    "es": "Pregunta:",
    "fr": "Question :",
    "ru": "Задача:",
    "sw": "Swali:",
    "bn": "প্রশ্ন:",
    "te": "ప్రశ్న:",
    "th": "โจทย์:",
    "ja": "問題：",
    "zh": "问题：",
}


def load(**_: object) -> dict[str, datasets.Dataset]:
    """The test documents of every language from the hub or its cache, each with its `language`.

    Languages take turns, so that the first documents of the task cover all of them.
    """
    parts = {name: datasets.load_dataset(REPOSITORY, name, split="test") for name in QUESTION}
    turns = zip(*([{**doc, "language": name} for doc in part] for name, part in parts.items()), strict=True)
    return {"test": datasets.Dataset.from_list(list(chain.from_iterable(turns)))}


def prompt(doc: dict[str, str]) -> str:
    return f"{QUESTION[doc['language']]} {doc['question']}\nStep-by-Step Answer:"
