"""Speculative decoding whose drafts are kept whole, with what the target said of each of their tokens.

After the first rejection a draft goes on from tokens that no text has. The target has read them when it verified the
draft: its logits of that round are those of a replay, so that none is needed (our inference; the paper runs the target
again).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.drafters import Drafter
from specbench.engine.generate import until_end
from specbench.engine.models.pair import Pair
from specbench.engine.speculate import speculate
from specbench.engine.trees import exact_draft
from specbench.engine.types import Draft, Round, Sampling, Scored, Verdict
from specbench.training.documents import Document


@dataclass(frozen=True)
class Replay:
    """A document with the answer that was decoded, and the M drafts of K tokens each that were verified meanwhile."""

    tokens: Tensor  # [L]: prompt and answer, as far as the target has read them
    states: Tensor  # [L, T D]: the target's states that the head reads, after each token
    anchors: Tensor  # [M]: the place of the last committed token before each draft
    drafted: Tensor  # [M, K]
    taught: Tensor  # [M, K, V]: the target's logits for each drafted token, given those of the draft before it
    accepted: Tensor  # [M]: drafted tokens that were accepted
    kept: Tensor  # [M]: drafted tokens that count; those after the end of the text do not

    @property
    def counted(self) -> Tensor:
        """The slots [M, K] that count."""
        return self.slots < self.kept[:, None]

    @property
    def rejected(self) -> Tensor:
        """The slots [M, K] from the first rejection on."""
        return self.slots >= self.accepted[:, None]

    @property
    def slots(self) -> Tensor:
        """The number of each slot [M, K] in its draft, from 0."""
        return torch.arange(self.drafted.shape[1], device=self.drafted.device).expand_as(self.drafted)


class Recorder(Drafter):
    """A head's drafter that keeps what the target says: states of the committed text, and logits for each draft."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.lengths, self.reads = drafter, drafter.lengths, drafter.reads
        self.states: list[Tensor] = []
        self.taught: list[Tensor] = []

    def begin(self, prompt: list[int]) -> None:
        self.drafter.begin(prompt)
        self.states, self.taught = [], []

    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        assert scored.hidden is not None
        self.drafter.observe_prompt(tokens, scored)
        self.states.append(scored.hidden)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        return self.drafter.propose(context, gamma, sampling, rng)

    def observe(self, scored: Scored, verdict: Verdict) -> None:
        assert scored.hidden is not None
        self.drafter.observe(scored, verdict)
        self.states.append(scored.hidden[: 1 + verdict.accepted])  # of a chain
        self.taught.append(scored.logits[:-1])


def rounds_of(
    pair: Pair, drafter: Drafter, gamma: int, document: Document, sampling: Sampling, rng: torch.Generator
) -> Iterator[Round]:
    """The rounds of exact speculative decoding with a head's chains of `gamma` tokens, to the end of the text."""
    rounds = speculate(pair.session("target"), drafter, exact_draft, gamma, document.prompt, sampling, rng)
    return until_end(rounds, document.ending(pair))


def replay(
    pair: Pair,
    drafter: Drafter,
    gamma: int,
    document: Document,
    length: int,
    sampling: Sampling,
    rng: torch.Generator,
) -> Replay | None:
    """Decode a document with a head's chains, up to `length` tokens with its prompt; None if nothing was drafted."""
    recorder = Recorder(drafter)
    context: list[int] = list(document.prompt)
    anchors, verdicts, kept = [], [], []
    for decoded in rounds_of(pair, recorder, gamma, document, sampling, rng):
        if verdict := decoded.verdict:
            anchors.append(len(context) - 1)
            verdicts.append(verdict)
            kept.append(len(decoded.tokens) if decoded.truncated else gamma)
        context += decoded.tokens
        if len(context) >= length:
            break
    if not verdicts:
        return None
    device = pair.device
    states = torch.cat(recorder.states)[: len(context)]
    return Replay(
        torch.tensor(context[: len(states)], device=device),
        states,
        torch.tensor(anchors, device=device),
        torch.tensor([verdict.drafted for verdict in verdicts], device=device),
        torch.stack(recorder.taught),
        torch.tensor([verdict.accepted for verdict in verdicts], device=device),
        torch.tensor(kept, device=device),
    )
