"""Who proposes tokens: so far, a smaller model."""

from typing import Protocol

import torch

from specbench.decoding.sampling import draw
from specbench.decoding.session import Session
from specbench.decoding.types import Draft, Sampling


class Drafter(Protocol):
    def begin(self, prompt: list[int]) -> None:
        """Start on a new prompt; belongs to the prefill."""

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """At most `gamma` tokens to follow `context`, whose last token no model has seen yet."""


class ModelDrafter:
    """A draft model, one token at a time; nothing is read back to the host while it drafts."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def begin(self, prompt: list[int]) -> None:
        self.session.restart(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """γ tokens by γ forwards; the last one is not fed, so after full acceptance the next round feeds two."""
        scored = self.session.catch_up(context)
        tokens, probs = [], []
        for step in range(gamma):
            token, q = draw(scored.logits[-1:], sampling, rng)
            tokens.append(token)
            probs.append(q)
            if step < gamma - 1:
                scored = self.session.forward(token)
        return Draft(torch.cat(tokens), None if sampling.greedy else torch.cat(probs))  # type: ignore[arg-type]
