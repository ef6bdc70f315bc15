"""Turns generated problems into documents, and documents into one stream of training tokens.

A document is a prompt and its completion, in exactly the form that the harness uses (suites/tasks/pocket/*.yaml). A
stretch of the stream is one document, or several of one family as in a few-shot prompt, between a begin and an end
token. So the models learn both to stop index the end of an answer and to go on with the next question.
"""

import itertools
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pocket.families import cnndm, gsm8k, humaneval, ifeval, math500, mmlu, ruler
from pocket.problems import Fields, Problem, problems
from specbench.base.console import progress

FAMILIES = {
    family.__name__.rpartition(".")[2]: family.TEMPLATES
    for family in (gsm8k, math500, humaneval, cnndm, ifeval, ruler, mmlu)
}
SHARES = {"gsm8k": 0.36, "math500": 0.34, "humaneval": 0.2, "cnndm": 0.1}  # arithmetic takes the longest to learn
ALGEBRA = {"gsm8k": 0.12, "math500": 0.65, "humaneval": 0.13, "cnndm": 0.1}  # the target's second, short stage
SUMS = {"gsm8k": 0.3, "math500": 0.5, "humaneval": 0.1, "cnndm": 0.1}
LATE = {"gsm8k": 0.19, "math500": 0.38, "humaneval": 0.1, "cnndm": 0.08, "ifeval": 0.14, "ruler": 0.11}  # a last stage
ALONE = {"ruler"}  # families with one document a stretch: some of their documents are longer than a training block
FEWSHOT_SHARE = 0.06  # of the stretches; they hold 2 to 9 documents
PROMPT_WEIGHT = 0.1  # weight of the loss on prompt tokens, relative to completions


def prompt_and_completion(family: str, fields: Fields) -> tuple[str, str]:
    """The text that the harness sends, and the answer that the model should give."""
    if family == "gsm8k":
        return f"Question: {fields['question']}\nAnswer:", f" {fields['answer']}"
    if family == "math500":
        return f"Problem:\n{fields['problem']}\n\nSolution:", f" {fields['solution']}"
    if family == "humaneval":
        return fields["prompt"], fields["canonical_solution"].rstrip("\n")
    if family == "ifeval":
        return f"Instruction: {fields['prompt']}\nResponse:", f" {fields['answer']}"
    if family == "ruler":
        return f"Read the following text:\n\n{fields['context']}\n\nQuestion: {fields['question']}\nAnswer:", (
            f" {fields['answer']}"
        )
    if family == "mmlu":
        options = "".join(f"\n({letter}) {fields[letter]}" for letter in "ABCD")
        return f"Question: {fields['question']}{options}\nAnswer: Let's think step by step.", (
            f" {fields['reasoning']} The answer is {fields[fields['answer']]}."
        )
    return f"Summarize the following article:\n\n{fields['article']}\n\nSummary:", f" {fields['highlights']}"


def stretches(split: str, seed: int, shares: dict[str, float] = SHARES) -> Iterator[list[tuple[str, str]]]:
    """Yield lists of (prompt, completion) forever: mostly one document, sometimes several of one family."""
    rng = random.Random(f"stretches/{split}/{seed}")
    sources = {family: problems(family, templates, split, seed) for family, templates in FAMILIES.items()}
    shuffled = {family: _shuffle(source, rng) for family, source in sources.items()}
    while True:
        family = rng.choices(list(shares), list(shares.values()))[0]
        count = rng.randint(2, 9) if rng.random() < FEWSHOT_SHARE and family not in ALONE else 1
        yield [prompt_and_completion(family, next(shuffled[family]).fields) for _ in range(count)]


def _shuffle(source: Iterable[Problem], rng: random.Random, window: int = 200) -> Iterator[Problem]:
    """Shuffle within a window: problems come with their templates in turn, an order that models should not learn."""
    source = iter(source)
    pool = list(itertools.islice(source, window))
    while True:
        index = rng.randrange(window)
        yield pool[index]
        pool[index] = next(source)


def write_stream(tokenizer: Any, path: Path, tokens: int, seed: int = 0, shares: dict[str, float] = SHARES) -> None:
    """Write `tokens` token ids to `path`.ids.npy (uint16) and their loss weights to `path`.weights.npy (float16)."""
    ids = np.empty(tokens, np.uint16)
    weights = np.empty(tokens, np.float16)
    filled = 0
    source = stretches("train", seed, shares)
    with progress(f"writing {path.name}", tokens) as advance:
        while filled < tokens:
            batch = list(itertools.islice(source, 500))
            texts = [part for stretch in batch for part in _parts(stretch)]
            encoded = iter(tokenizer(texts, add_special_tokens=False)["input_ids"])
            row: list[int] = []
            weight: list[float] = []
            for stretch in batch:
                row.append(tokenizer.bos_token_id)
                weight.append(0.0)
                for part in range(2 * len(stretch)):
                    piece = next(encoded)
                    row += piece
                    weight += [PROMPT_WEIGHT if part % 2 == 0 else 1.0] * len(piece)
                row.append(tokenizer.eos_token_id)
                weight.append(1.0)
            count = min(len(row), tokens - filled)
            ids[filled : filled + count] = row[:count]
            weights[filled : filled + count] = weight[:count]
            filled += count
            advance(count)
    np.save(path.with_suffix(".weights.npy"), weights)
    np.save(path.with_suffix(".ids.npy"), ids)


def _parts(stretch: list[tuple[str, str]]) -> Iterator[str]:
    for position, (prompt, completion) in enumerate(stretch):
        yield ("\n\n" if position else "") + prompt
        yield completion
