"""Draft, score, accept, keep: the loop that most methods share. A method that would need a flag here writes its own."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from specbench.engine.accept import Accept
from specbench.engine.drafters import Drafter
from specbench.engine.ids import Later, to_device
from specbench.engine.sampling import draw
from specbench.engine.session import Session
from specbench.engine.types import Draft, Round, Sampling, Scored

# The target scores a draft of K tokens: target, ids of the last committed tokens (the very last is not fed yet), draft,
# the hidden states that the drafter reads -> logits [K + 1, V] after the context, then after each drafted token.
# Afterwards the target's cache holds exactly the context and the draft.
Score = Callable[[Session, Sequence[int], Draft, Sequence[int]], Scored]

CHUNK = 512  # tokens of a prompt that are read at a time where all logits are seen: those of a long one fill the memory


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


def only_path(draft: Draft) -> Draft:
    """A tree's first child of the context, its first child, and so on, as a tree without branches; a chain as it is.

    For targets that read chains only. Siblings are tested in their order, the likeliest first where a method ranks
    them, so a rule judges these tokens as in the whole tree. What is lossless stays so.
    """
    if draft.parents is None:
        return draft
    parents, path = list(draft.parents), [-1]
    while path[-1] in parents:
        path.append(parents.index(path[-1]))
    nodes = to_device(path[1:], draft.tokens.device)
    probs = None if draft.probs is None else draft.probs[nodes]
    predictions = draft.predictions and tuple(draft.predictions[node] for node in path[1:])
    return Draft(draft.tokens[nodes], probs, tuple(range(-1, len(nodes) - 1)), predictions)


def read_in_chunks(target: Session, prompt: list[int], size: int, hidden: Sequence[int] = ()) -> Iterator[Scored]:
    """Read a prompt into an empty cache, `size` tokens at a time; logits [n, V] after every token of each chunk.

    `hidden` is as in `Session.forward`.
    """
    target.truncate(0)
    target.prompt_length = len(prompt)
    for start in range(0, len(prompt), size):
        yield target.forward(prompt[start : start + size], hidden=hidden)


def read_prompt(target: Session, drafter: Drafter, prompt: list[int]) -> Scored:
    """Let the target read a prompt into an empty cache, and the drafter what it sees of that.

    Returns logits, whose last row is that of the prompt's last token.
    """
    if drafter.prompt_logits:
        scored = target.restart(prompt, min(drafter.prompt_logits, len(prompt)), drafter.reads)
        drafter.observe_prompt(prompt, scored)
        return scored
    read = 0
    for scored in read_in_chunks(target, prompt, CHUNK, drafter.reads):
        read += len(scored.logits)
        drafter.observe_prompt(prompt[read - len(scored.logits) : read], scored)
    return scored


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
) -> Iterator[Round]:
    """Decode without end: each round drafts at most γ tokens (or levels of a tree) and takes one target forward.

    A target that reads chains only is asked for one path of each tree (`only_path`).
    `score` receives the last `recent` committed tokens (at least 1), or all of them while there are fewer.
    """
    drafter.begin(prompt)
    token, _ = draw(read_prompt(target, drafter, prompt).logits[-1:], sampling, rng)
    context = [*prompt, int(token)]
    yield Round(context[-1:])
    while True:
        draft = drafter.propose(context, gamma, sampling, rng)
        if not target.trees:
            draft = only_path(draft)
        scored = score(target, context[-recent:], draft, drafter.reads)
        verdict = accept(draft, scored, sampling, rng)
        drafter.observe(scored, verdict)
        drafter.lengths.observe(verdict)
        target.keep(len(context), verdict.path)
        committed = verdict.committed
        context += committed
        yield Round(committed, verdict)


class Speculative:
    """Base of methods whose rounds are those of `speculate`, with these attributes as its arguments."""

    target: Session
    drafter: Drafter
    gamma: int
    accept: Accept
    score: Score = staticmethod(read_once)
    hashes: Mapping[str, str] = {}  # of files that the drafter or the rule was made from

    @property
    def penalised(self) -> bool:
        """True if every token is judged by what the target says after the text before it, and after nothing else."""
        return self.score is read_once and type(self).rounds is Speculative.rounds

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        return speculate(self.target, self.drafter, self.accept, self.gamma, prompt, sampling, rng, self.score)

    def inputs(self) -> dict[str, str]:
        return dict(self.hashes)
