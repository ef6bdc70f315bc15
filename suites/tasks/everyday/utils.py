"""Data and scoring of the everyday tasks, for lm-eval's `!function`."""

import functools
import json
import string
from difflib import SequenceMatcher
from pathlib import Path

import datasets
from rouge_score.rouge_scorer import RougeScorer

Edit = tuple[int, int, tuple[str, ...]]


def load(name: str, **_: object) -> dict[str, datasets.Dataset]:
    """The documents of a task by split: `train`, from which few-shot examples come, and `test`."""
    return {split: _read(f"{name}_{split}.jsonl") for split in ("train", "test")}


def _read(file: str) -> datasets.Dataset:
    lines = (Path(__file__).parent / file).read_text("utf-8").splitlines()
    return datasets.Dataset.from_list([json.loads(line) for line in lines])


def words(text: str) -> list[str]:
    """The words of a text in lower case, without articles and without punctuation, as SQuAD compares answers.

    Signs within a word stay: `2.4` is not `24`.
    """
    bare = [word.strip(string.punctuation) for word in text.lower().replace("’", "'").split()]
    return [word for word in bare if word and word not in ("a", "an", "the")]


def contains(text: str, answer: str) -> bool:
    """True if the words of `answer` stand in `text`, next to each other and in order."""
    return f" {' '.join(words(answer))} " in f" {' '.join(words(text))} "


def score_reading(doc: dict[str, list[str]], results: list[str]) -> dict[str, float]:
    """`contains`: 1 if the text has one of the forms of the answer, such as `twelve` and `12`; otherwise 0."""
    return {"contains": float(any(contains(results[0], answer) for answer in doc["answers"]))}


@functools.cache
def _rouge() -> RougeScorer:
    return RougeScorer(["rougeL"], use_stemmer=True)


def rouge_l(reference: str, text: str) -> float:
    """F-measure of ROUGE-L with stemming, from 0 to 1."""
    return float(_rouge().score(reference, text)["rougeL"].fmeasure)


def score_summary(doc: dict[str, str], results: list[str]) -> dict[str, float]:
    return {"rougeL": rouge_l(doc["summary"], results[0])}


def edits(before: str, after: str) -> set[Edit]:
    """What changes `before` into `after`, as (from, to, new words): places among the words of `before`.

    Words are parted by white space, so that capitals and punctuation count. A changed stretch of as many words as
    before is an edit for each changed word.
    """
    old, new = before.split(), after.split()
    found: set[Edit] = set()
    for kind, start, end, first, last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "replace" and end - start == last - first:
            found |= {(start + i, start + i + 1, (new[first + i],)) for i in range(end - start)}
        elif kind != "equal":
            found.add((start, end, tuple(new[first:last])))
    return found


def edit_f1(text: str, reference: str, answer: str) -> float:
    """F1 of the edits in `answer` against those in `reference`, from 0 to 1; 0 for the unchanged text.

    As in grammatical error correction (Dahlmeier and Ng 2012), where an edit counts if it is one of the reference's.
    """
    wanted, made = edits(text, reference), edits(text, answer)
    return 2 * len(wanted & made) / (len(wanted) + len(made))


def score_editing(doc: dict[str, str], results: list[str]) -> dict[str, float]:
    """`edit_f1`, and `rougeL`, which is high for the unchanged text already."""
    answer = results[0]
    return {"edit_f1": edit_f1(doc["text"], doc["answer"], answer), "rougeL": rouge_l(doc["answer"], answer)}
