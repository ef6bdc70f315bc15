"""Many texts decoded together by speculation with an arbiter, every round kept: CoSpec's arbitrator learns from it.

The rules are those of methods/cospec.py; only the forwards are of many texts at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.decoding.accept import exact_test, weigh
from specbench.decoding.arbiters import Block
from specbench.decoding.batch import Batch, until_all_end
from specbench.decoding.generate import Ending
from specbench.decoding.sampling import draw, wide
from specbench.decoding.types import Draft, Sampling, Scored
from specbench.methods.cospec import block_of
from specbench.models import Pair


@dataclass(frozen=True)
class Turn:
    """One round of a text: the block behind its first `context` tokens, and what became of it."""

    context: int
    block: Block
    logits: list[float]  # of the policy, one for each mismatch of the block; empty if none was asked
    reached: int  # of the mismatches, how many were decided, and lie within the text
    rejected: bool  # whether the last of these was
    surprisals: list[float]  # -log p_target(d), one for each mismatch, in nats
    emitted: int  # tokens that the round commits, up to the end of the text

    @property
    def decided(self) -> list[int]:
        """Positions of the mismatches that were decided."""
        return self.block.mismatches[: self.reached]

    @property
    def kept(self) -> list[bool]:
        """Whether the draft's token was kept, of each mismatch that was decided."""
        return [not (self.rejected and i == self.reached - 1) for i in range(self.reached)]


@dataclass
class Text:
    """A text on its way: what is known of it, and its rounds."""

    prompt: list[int]
    ending: Ending
    answer: list[int] = field(default_factory=list)  # all that was committed, also behind its end
    turns: list[Turn] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.answer]

    def commit(self, tokens: Sequence[int]) -> int:
        """Append tokens; returns how many of them belong to the text."""
        self.answer += tokens
        return self.ending.keep(tokens)


# Whether to keep the draft's token, of each mismatch: text number, block, the policy's logits for its mismatches.
Decide = Callable[[int, Block, list[float]], Iterator[bool]]


def decode(
    pair: Pair,
    arbitrator: PreTrainedModel | None,
    texts: Sequence[Text],
    gamma: int,
    sampling: Sampling,
    rng: torch.Generator,
    decide: Decide,
    hybrid: bool = True,
) -> None:
    """Decode all texts to their ends, in place. Without an arbitrator, `decide` is asked without logits."""
    rows = list(range(len(texts)))
    target, draft = (Batch(pair.models[role], len(rows), role, None, pair.vocabulary) for role in ("target", "draft"))
    policy = Batch(arbitrator, len(rows), "arbitrator", None, 1) if arbitrator is not None else None
    first = target.feed([one.prompt for one in texts])[:, -1]
    for text, token in zip(texts, draw(first, sampling, rng)[0].tolist(), strict=True):
        text.commit([token])

    def step(rows: list[int]) -> None:
        going = [texts[row] for row in rows]
        one_round(target, draft, policy, going, rows, gamma, sampling, rng, decide, hybrid)

    models = [target, draft, *([] if policy is None else [policy])]
    until_all_end(models, lambda row: bool(texts[row].ending.reason), step)


def one_round(
    target: Batch,
    draft: Batch,
    policy: Batch | None,
    texts: Sequence[Text],
    numbers: Sequence[int],
    gamma: int,
    sampling: Sampling,
    rng: torch.Generator,
    decide: Decide,
    hybrid: bool,
) -> None:
    """Draft, score and decide once for each text, in place; those that have ended go along and stay as they are."""
    drafts = propose(draft, unread(draft, texts), gamma, sampling, rng)
    tokens = torch.stack([one.tokens for one in drafts])
    logits = target.feed(unread(target, texts), tokens, keep=gamma + 1)
    chances = wide(logits[:, :gamma]).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    weighed, blocks = [], []
    for one, row in zip(drafts, logits, strict=True):
        tested = exact_test(one, row, sampling, rng)
        weighed.append(weigh(one, Scored(row), sampling, rng, tested, also=[]))
        blocks.append(block_of(one.tokens, tested, weighed[-1].drafted, weighed[-1].emit, weighed[-1].passed))
    scores = None
    if policy is not None and any(block.mismatches for block in blocks):
        both = torch.stack([block.tokens for block in blocks])
        fed = policy.feed(unread(policy, texts), both, keep=2 * gamma, together=2 * gamma if hybrid else 0)
        scores = fed[:, :gamma, 0].double().tolist()
    surprisals = (-chances.double()).tolist()
    for at, (number, text, block, found) in enumerate(zip(numbers, texts, blocks, weighed, strict=True)):
        if text.ending.reason:
            continue
        own = [scores[at][i] for i in block.mismatches] if scores else []
        reached, stop = 0, None
        for i, keeps in zip(block.mismatches, decide(number, block, own), strict=False):
            reached += 1
            if not keeps:
                stop = i
                break
        committed = found.verdict(gamma if stop is None else stop).committed
        context = len(text.tokens)
        emitted = text.commit(committed)
        reached = sum(i < emitted for i in block.mismatches[:reached])
        told = [surprisals[at][i] for i in block.mismatches]
        text.turns.append(Turn(context, block, own, reached, stop is not None and stop < emitted, told, emitted))
    known = [len(text.tokens) - 1 for text in texts]  # the last token is not fed yet
    target.truncate(torch.tensor(known))
    draft.truncate(torch.tensor(known))
    if policy is not None:
        policy.truncate(torch.tensor([turn_begins(text) for text in texts]))


def turn_begins(text: Text) -> int:
    """How many tokens of a text its last round was behind."""
    return text.turns[-1].context if text.turns else len(text.prompt)


def unread(model: Batch, texts: Sequence[Text]) -> list[list[int]]:
    return [text.tokens[read:] for text, read in zip(texts, model.lengths.tolist(), strict=True)]


def propose(draft: Batch, fed: list[list[int]], gamma: int, sampling: Sampling, rng: torch.Generator) -> list[Draft]:
    """γ drafted tokens behind each text."""
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
    drawn = torch.stack(tokens, 1)
    spread = torch.stack(probs, 1) if probs else None
    return [Draft(one, None if spread is None else spread[at]) for at, one in enumerate(drawn)]
