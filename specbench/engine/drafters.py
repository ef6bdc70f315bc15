"""What proposes tokens: the base of models, heads, blocks and look-ups, and the usual drafter, a smaller model."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from specbench.engine.lengths import DraftToken, Lengths
from specbench.engine.runtimes.types import Chain
from specbench.engine.sampling import draw
from specbench.engine.types import Draft, Sampling, Scored, Verdict


class Drafter:
    """Proposes tokens to follow a text, one text at a time. Of what the target says it sees what it asks for.

    In turn: `begin`, `observe_prompt`, then in each round `propose` and `observe`.
    """

    lengths: Lengths = Lengths()  # decides when the draft ends, and observes every verdict; by default no policy
    reads: Sequence[int] = ()  # the target's hidden states that it observes, as in `Session.forward`
    prompt_logits = 1  # of how many of a prompt's last tokens it observes the target's logits; 0: of all, part by part

    def begin(self, prompt: list[int]) -> None:
        """Start on a new prompt. This is part of the prefill."""

    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        """See what the target says of a prompt, or of a part of it: n tokens, their states [n, D], the last logits.

        This is part of the prefill, too.
        """

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """At most `gamma` tokens to follow `context`, whose last token no model has read yet."""
        raise NotImplementedError

    def observe(self, scored: Scored, verdict: Verdict) -> None:
        """See what the target says of the last committed token and the K drafted ones, and what was accepted."""


@runtime_checkable
class Remembering(Protocol):
    """A drafter that learns from whole answers for the texts that come later."""

    def remember(self, answer: list[int]) -> None:
        """Learn from an answer, in place."""


class Reader(Protocol):
    """What a draft model is to its drafter: a session, or several that read the same tokens; as in `Session`."""

    @property
    def device(self) -> torch.device: ...

    def restart(self, prompt: Sequence[int]) -> Scored: ...

    def catch_up(self, context: Sequence[int], hidden: Sequence[int] = ()) -> Scored: ...

    def forward(self, tokens: Tensor, *, hidden: Sequence[int] = ()) -> Scored: ...

    def draft_chain(
        self, context: Sequence[int], count: int, sampling: Sampling, rng: torch.Generator
    ) -> Chain | None: ...


Read = TypeVar("Read", bound=Reader)


class ModelDrafter(Generic[Read], Drafter):
    """A draft model. A draft ends after a token of `eos_ids`.

    Unless `lengths` or `eos_ids` look at the tokens, a draft is one call, and nothing is copied to the host meanwhile.
    """

    def __init__(self, session: Read, lengths: Lengths | None = None, eos_ids: frozenset[int] = frozenset()) -> None:
        self.session, self.lengths, self.eos_ids = session, lengths or Lengths(), eos_ids

    def begin(self, prompt: list[int]) -> None:
        self.session.restart(prompt)
        self.lengths.begin(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """K tokens by K forwards. The last one is not fed, so after full acceptance the next round feeds two."""
        lengths = self.lengths
        most = lengths.most(gamma, len(context))
        if not most:
            return Draft(torch.empty(0, dtype=torch.long, device=self.session.device), None)
        unseen = not lengths.looks and not self.eos_ids
        if unseen and (chain := self.session.draft_chain(context, most, sampling, rng)):
            return Draft(chain.tokens, chain.probs, predictions=lengths.predictions(most), ids=chain.ids)
        scored = self.session.catch_up(context, lengths.hidden)
        tokens, probs = [], []
        while True:
            token, q = draw(scored.logits[-1:], sampling, rng)
            tokens.append(token)
            probs.append(q)
            hidden = None if scored.hidden is None else scored.hidden[-1]
            ended = lengths.looks and lengths.enough(len(tokens), DraftToken(token, scored.logits[-1:], q, hidden))
            if ended or len(tokens) == most or (self.eos_ids and int(token) in self.eos_ids):
                break
            scored = self.session.forward(token, hidden=lengths.hidden)
        return Draft(
            torch.cat(tokens),
            None if sampling.greedy else torch.cat(probs),  # type: ignore[arg-type]
            predictions=lengths.predictions(len(tokens)),
        )
