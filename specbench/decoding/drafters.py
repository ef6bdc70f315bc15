"""Who proposes tokens: so far, a smaller model."""

from typing import Protocol

import torch

from specbench.decoding.lengths import Drawn, Lengths
from specbench.decoding.sampling import draw
from specbench.decoding.session import Session
from specbench.decoding.types import Draft, Sampling


class Drafter(Protocol):
    lengths: Lengths  # when it stops drafting; told of every verdict

    def begin(self, prompt: list[int]) -> None:
        """Start on a new prompt; belongs to the prefill."""

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """At most `gamma` tokens to follow `context`, whose last token no model has seen yet."""


class ModelDrafter:
    """A draft model, one token at a time; unless `lengths` or `eos_ids` look at them, nothing is read back meanwhile.

    A draft ends behind a token of `eos_ids`.
    """

    def __init__(self, session: Session, lengths: Lengths | None = None, eos_ids: frozenset[int] = frozenset()) -> None:
        self.session, self.lengths, self.eos_ids = session, lengths or Lengths(), eos_ids

    def begin(self, prompt: list[int]) -> None:
        self.session.restart(prompt)
        self.lengths.begin(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """K tokens by K forwards; the last one is not fed, so after full acceptance the next round feeds two."""
        lengths = self.lengths
        most = lengths.most(gamma, len(context))
        if not most:
            return Draft(torch.empty(0, dtype=torch.long, device=self.session.device), None)
        scored = self.session.catch_up(context, lengths.hidden)
        tokens, probs = [], []
        while True:
            token, q = draw(scored.logits[-1:], sampling, rng)
            tokens.append(token)
            probs.append(q)
            hidden = None if scored.hidden is None else scored.hidden[-1]
            ended = lengths.looks and lengths.enough(len(tokens), Drawn(token, scored.logits[-1:], q, hidden))
            if ended or len(tokens) == most or (self.eos_ids and int(token) in self.eos_ids):
                break
            scored = self.session.forward(token, hidden=lengths.hidden)
        return Draft(
            torch.cat(tokens),
            None if sampling.greedy else torch.cat(probs),  # type: ignore[arg-type]
            predictions=lengths.predictions(len(tokens)),
        )
