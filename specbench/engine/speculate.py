"""Draft, score, accept, keep: the loop that most methods share. A method that would need a flag here writes its own."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from specbench.engine.accept import Accept
from specbench.engine.drafters import Drafter
from specbench.engine.ids import Later, to_device
from specbench.engine.sampling import draw
from specbench.engine.session import Session
from specbench.engine.types import Draft, Round, Sampling, Scored, Verdict

# The target scores a draft of K tokens: target, ids of the last committed tokens (the very last is not fed yet), draft
# -> logits [K + 1, V] after the context, then after each drafted token. Afterwards the target's cache holds exactly the
# context and the draft.
Score = Callable[[Session, Sequence[int], Draft], Scored]

# The target reads a prompt into an empty cache -> logits, whose last row is that of the prompt's last token.
Prefill = Callable[[Session, list[int]], Scored]


def read_once(target: Session, recent: Sequence[int], draft: Draft, hidden: Sequence[int] = ()) -> Scored:
    """Score a draft, chain or tree, by one forward over the last committed token and the draft.

    `hidden` is as in `Session.forward`.
    """
    parents: list[int] | Tensor | None = None
    if isinstance(draft.parents, Later):
        assert draft.rows is not None
        parents = torch.nn.functional.pad(draft.rows, (1, 0), value=-1)
    elif draft.parents is not None:
        parents = [-1, *(parent + 1 for parent in draft.parents)]
    return target.forward(unread(recent, draft), parents=parents, hidden=hidden)


def unread(recent: Sequence[int], draft: Draft) -> Tensor | list[int]:
    """The last committed token and the K tokens of a draft, which the target has not read [K + 1].

    On the host if the draft is there, which spares operations on tensors.
    """
    if draft.ids is not None:
        return [*recent[-1:], *draft.ids]
    return torch.cat([to_device(recent[-1:], draft.tokens.device), draft.tokens])


def read_in_chunks(target: Session, prompt: list[int], size: int, hidden: Sequence[int] = ()) -> Iterator[Scored]:
    """Read a prompt into an empty cache, `size` tokens at a time; logits [n, V] after every token of each chunk.

    `hidden` is as in `Session.forward`.
    """
    target.truncate(0)
    target.prompt_length = len(prompt)
    for start in range(0, len(prompt), size):
        yield target.forward(prompt[start : start + size], hidden=hidden)


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
    """Decode without end: each round drafts at most γ tokens (or levels of a tree) and takes one target forward.

    A target that reads chains only is asked for one path of each tree (`trees.only_path`).
    `score` receives the last `recent` committed tokens (at least 1), or all of them while there are fewer.
    """
    drafter.begin(prompt)
    token, _ = draw(prefill(target, prompt).logits[-1:], sampling, rng)
    context = [*prompt, int(token)]
    yield Round(context[-1:])
    while True:
        draft = drafter.propose(context, gamma, sampling, rng)
        if not target.trees:
            from specbench.engine.trees import only_path

            draft = only_path(draft)
        scored = score(target, context[-recent:], draft)
        verdict = accept(draft, scored, sampling, rng)
        drafter.lengths.observe(verdict)
        target.keep(len(context), verdict.path)
        committed = verdict.committed
        context += committed
        yield Round(committed, verdict)


class HeadDrafter(Drafter, Protocol):
    """A drafter that needs the target's hidden states of every round, so it prefills, scores and judges itself."""

    def prefill(self, target: Session, prompt: list[int]) -> Scored:
        """As `Session.restart` of the target; the head reads the prompt, too."""

    def score(self, target: Session, recent: Sequence[int], draft: Draft) -> Scored:
        """A `Score` that keeps the target's states."""

    def accept(self, draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
        """An `Accept` that keeps the states of the accepted tokens."""


class Headed:
    """Base of methods whose rounds are those of `speculate` with a `HeadDrafter`."""

    target: Session
    drafter: HeadDrafter
    gamma: int
    hashes: dict[str, str]  # of the head
    penalised = True

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        head = self.drafter
        return speculate(
            self.target, head, head.accept, self.gamma, prompt, sampling, rng, head.score, prefill=head.prefill
        )

    def inputs(self) -> dict[str, str]:
        return dict(self.hashes)


class Speculative:
    """Base of methods whose rounds are those of `speculate`, with these attributes as its arguments."""

    target: Session
    drafter: Drafter
    gamma: int
    accept: Accept
    score: Score = staticmethod(read_once)

    @property
    def penalised(self) -> bool:
        """True if every token is judged by what the target says after the text before it, and after nothing else."""
        return self.score is read_once and type(self).rounds is Speculative.rounds

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        return speculate(self.target, self.drafter, self.accept, self.gamma, prompt, sampling, rng, self.score)
