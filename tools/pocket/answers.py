"""Answers of a model of the pair to generated problems: more training text for the draft, and a check of quality."""

import itertools
from collections.abc import Iterator

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from pocket.corpus import FAMILIES, SHARES, prompt_and_completion
from pocket.problems import Problem, problems


@torch.inference_mode()
def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[str],
    temperature: float = 0.0,
    length: int = 120,
) -> list[list[int]]:
    """Token ids of the answers, with their end token if they reach it; all prompts in one batch."""
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(model.device)
    sampling = {"do_sample": temperature > 0, "temperature": temperature or None, "top_k": None, "top_p": None}
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    output = model.generate(**batch, max_new_tokens=length, eos_token_id=end, pad_token_id=pad, **sampling)
    answers = output[:, batch["input_ids"].shape[1] :].tolist()
    return [ids[: ids.index(end) + 1] if end in ids else [i for i in ids if i != pad] for ids in answers]


def problems_in_turn(split: str, seed: int) -> Iterator[Problem]:
    """Yield problems of the families of the first stage in turn, forever."""
    sources = [problems(family, FAMILIES[family], split, seed) for family in SHARES]
    for group in zip(*sources, strict=True):
        yield from group


def answered(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    split: str,
    seed: int,
    temperature: float,
    batch: int = 128,
) -> Iterator[tuple[Problem, list[int]]]:
    """Yield generated problems with the model's answers, forever, a batch at a time."""
    source = problems_in_turn(split, seed)
    while True:
        posed = list(itertools.islice(source, batch))
        prompts = [prompt_and_completion(problem.family, problem.fields)[0] for problem in posed]
        yield from zip(posed, answer(model, tokenizer, prompts, temperature), strict=True)
