"""Splits, prompts and scoring of Alpaca, for lm-eval's `!function`."""

import functools
import hashlib

import datasets
from rouge_score.rouge_scorer import RougeScorer

REPOSITORY = "tatsu-lab/alpaca"
PARTS, TEST, VALIDATION = 52, 2, 10  # the paper has 40k prompts for training, 10k to develop on and 2k to test on


def split_of(instruction: str) -> str:
    """`test`, `validation` or `train`, from the instruction alone.

    The data set comes in one piece, and the paper does not say how it was split: the hash is our inference. It puts
    all documents with the same instruction into one split, whatever their input, and needs neither an order nor a seed.
    """
    digest = hashlib.sha256(" ".join(instruction.split()).encode()).digest()
    part = int.from_bytes(digest[:8], "big") % PARTS
    return "test" if part < TEST else "validation" if part < TEST + VALIDATION else "train"


def load(**_: object) -> dict[str, datasets.Dataset]:
    """The data set from the hub or its cache, by split, in its own order."""
    whole = datasets.load_dataset(REPOSITORY, split="train")
    assignments = [split_of(instruction) for instruction in whole["instruction"]]
    return {
        split: whole.select([index for index, assigned in enumerate(assignments) if assigned == split])
        for split in ("train", "validation", "test")
    }


def prompt(doc: dict[str, str]) -> str:
    """The data set's own template, which has a form with an input and one without."""
    with_input = bool(doc["input"].strip())
    addition = ", paired with an input that provides further context" if with_input else ""
    input_section = f"### Input:\n{doc['input']}\n\n" if with_input else ""
    return (
        f"Below is an instruction that describes a task{addition}. "
        "Write a response that appropriately completes the request.\n\n"
        f"### Instruction:\n{doc['instruction']}\n\n{input_section}### Response:"
    )


@functools.cache
def _rouge() -> RougeScorer:
    return RougeScorer(["rouge1", "rougeL"], use_stemmer=True)


def score_reference(doc: dict[str, str], results: list[str]) -> dict[str, float]:
    """F-measures of ROUGE-1 and ROUGE-L against the reference, with stemming, from 0 to 1; not an accuracy."""
    scores = _rouge().score(doc["output"], results[0])
    return {name: score.fmeasure for name, score in scores.items()}
