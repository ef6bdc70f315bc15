"""Draft, score, accept: the loop that most methods share. A method that would need a flag in it writes its own."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from specbench.decoding.accept import Accept
from specbench.decoding.drafters import Drafter
from specbench.decoding.sampling import draw
from specbench.decoding.session import Session, sent
from specbench.decoding.types import Draft, Round, Sampling, Scored

# How the target is asked about a draft of K tokens: target, the last committed tokens (the very last of them is not
# fed yet), draft -> logits [K + 1, V]: behind the context, then behind each drafted token. Afterwards the target's
# cache holds the whole context and the draft, no more.
Score = Callable[[Session, Tensor, Draft], Scored]

# How the target reads a prompt, into an empty cache: the last row of the logits is that of the prompt's last token.
Prefill = Callable[[Session, list[int]], Scored]


def read_once(target: Session, recent: Tensor, draft: Draft) -> Scored:
    """One forward over the last committed token and the draft, a chain or a tree."""
    parents = None if draft.parents is None else [-1, *(parent + 1 for parent in draft.parents)]
    return target.forward(torch.cat([recent[-1:], draft.tokens]), parents=parents)


def speculate(
    target: Session,
    drafter: Drafter,
    accept: Accept,
    gamma: int,
    prompt: list[int],
    sampling: Sampling,
    rng: torch.Generator,
    score: Score = read_once,
    recent: int = 1,
    prefill: Prefill = Session.restart,
) -> Iterator[Round]:
    """Decode `prompt` for ever, at most γ drafted tokens (levels of a tree) and one target forward a round.

    `score` is shown the last `recent` committed tokens (at least 1), or all of them while there are fewer.
    """
    drafter.begin(prompt)
    token, _ = draw(prefill(target, prompt).logits[-1:], sampling, rng)
    context = [*prompt, int(token)]
    yield Round(context[-1:])
    while True:
        last = sent(context[-recent:], target.device)
        draft = drafter.propose(context, gamma, sampling, rng)
        scored = score(target, last, draft)
        verdict = accept(draft, scored, sampling, rng)
        drafter.lengths.observe(verdict)
        target.keep(len(context), verdict.path)
        committed = verdict.committed
        context += committed
        yield Round(committed, verdict)
