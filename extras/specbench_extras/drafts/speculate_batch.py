"""Exact speculative decoding of many texts at once, a forward for all: for drafts that learn from their own rounds."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.accept import exact
from specbench.engine.generate import Ending
from specbench.engine.sampling import draw
from specbench.engine.types import Draft, Round, Sampling, Scored
from specbench_extras.drafts.batch import Batch, until_all_end


def speculate_all(
    target: Batch,
    draft: Batch,
    gamma: int,
    prompts: Sequence[Sequence[int]],
    endings: Sequence[Ending],
    sampling: Sampling,
    rng: torch.Generator,
) -> list[list[Round]]:
    """The rounds of each text, the last of them cut where the text ends.

    `target` and `draft` have an empty row for each prompt, and `endings` an empty answer; all are changed in place.
    Each round drafts γ tokens after every text and takes one forward of the target for all of them. A text's law is
    that of `speculate`, but not its random numbers.
    """
    contexts = [list(prompt) for prompt in prompts]
    rounds: list[list[Round]] = [[] for _ in prompts]

    def commit(text: int, made: Round) -> None:
        if not endings[text].reason:  # a text that has ended may still have a row
            rounds[text].append(made.cut(endings[text].keep(made.tokens)))
            contexts[text] += rounds[text][-1].tokens

    def step(texts: list[int]) -> None:
        here = [contexts[text] for text in texts]
        drafts = propose(draft, unread(draft, here), gamma, sampling, rng)
        logits = target.feed(unread(target, here), torch.stack([drafted.tokens for drafted in drafts]), keep=gamma + 1)
        for text, drafted, row in zip(texts, drafts, logits, strict=True):
            verdict = exact(drafted, Scored(row), sampling, rng)
            commit(text, Round(verdict.committed, verdict))
        read = torch.tensor([len(contexts[text]) - 1 for text in texts])  # the last token is not fed yet
        target.truncate(read)
        draft.truncate(read)

    first = target.feed(contexts)[:, -1]
    for text, token in enumerate(draw(first, sampling, rng)[0].tolist()):
        commit(text, Round([token]))
    until_all_end([target, draft], lambda text: bool(endings[text].reason), step)
    return rounds


def unread(model: Batch, texts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The tokens of each text that a model has not read."""
    return [list(text[read:]) for text, read in zip(texts, model.lengths.tolist(), strict=True)]


def propose(draft: Batch, fed: list[list[int]], gamma: int, sampling: Sampling, rng: torch.Generator) -> list[Draft]:
    """γ drafted tokens after each text."""
    logits = draft.feed(fed)[:, -1]
    tokens: list[Tensor] = []
    probs: list[Tensor] = []
    for i in range(gamma):
        if i:
            logits = draft.forward(tokens[-1][:, None])[:, -1]
        token, q = draw(logits, sampling, rng)
        tokens.append(token)
        if q is not None:
            probs.append(q)
    all_probs = torch.stack(probs, 1) if probs else None
    return [Draft(row, None if all_probs is None else all_probs[i]) for i, row in enumerate(torch.stack(tokens, 1))]
