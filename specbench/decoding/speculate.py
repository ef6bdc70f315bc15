"""Draft, score, accept: the loop that most methods share. A method that would need a flag in it writes its own."""

from collections.abc import Iterator

import torch

from specbench.decoding.accept import Accept
from specbench.decoding.drafters import Drafter
from specbench.decoding.sampling import draw
from specbench.decoding.session import Session
from specbench.decoding.types import Round, Sampling


def speculate(
    target: Session,
    drafter: Drafter,
    accept: Accept,
    gamma: int,
    prompt: list[int],
    sampling: Sampling,
    rng: torch.Generator,
) -> Iterator[Round]:
    """Decode `prompt` for ever, γ drafted tokens and one target forward a round."""
    drafter.begin(prompt)
    token, _ = draw(target.restart(prompt).logits, sampling, rng)
    context = [*prompt, int(token)]
    yield Round(context[-1:])
    while True:
        last = torch.tensor(context[-1:], device=target.device)
        draft = drafter.propose(context, gamma, sampling, rng)
        scored = target.forward(torch.cat([last, draft.tokens]))
        verdict = accept(draft, scored, sampling, rng)
        target.truncate(len(context) + verdict.accepted)
        committed = [*verdict.drafted[: verdict.accepted], verdict.token]
        context += committed
        yield Round(committed, verdict)
