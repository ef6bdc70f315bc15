"""Decode many texts together by CoSpec, and keep every round: the arbitrator learns from them.

The rules are those of cospec.py; only the forwards are for many texts at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from specbench.engine.accept import exact_test, weigh
from specbench.engine.generate import Ending
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import draw, wide
from specbench.engine.types import Sampling, Scored
from specbench.methods.collaborative.cospec import Block, block_of
from specbench_extras.drafts.batch import Batch, until_all_end
from specbench_extras.drafts.speculate_batch import propose, unread


@dataclass(frozen=True)
class Turn:
    """One round of a text: the block after its first `context` tokens, and the decisions on it."""

    context: int
    block: Block
    logits: list[float]  # of the policy, one for each mismatch of the block; empty without a policy
    reached: int  # the number of mismatches within the text that were decided
    rejected: bool  # True: the last of these was rejected
    surprisals: list[float]  # -log p_target(d), one for each mismatch, in nats
    emitted: int  # tokens that the round commits, up to the end of the text

    @property
    def decided(self) -> list[int]:
        """Positions of the mismatches that were decided."""
        return self.block.mismatches[: self.reached]

    @property
    def kept(self) -> list[bool]:
        """For each mismatch that was decided: True if the draft's token was kept."""
        return [not (self.rejected and i == self.reached - 1) for i in range(self.reached)]


@dataclass
class Text:
    """A text while it is decoded, and its rounds."""

    prompt: list[int]
    ending: Ending
    answer: list[int] = field(default_factory=list)  # all committed tokens, even those after the end of the text
    turns: list[Turn] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.answer]

    def commit(self, tokens: Sequence[int]) -> int:
        """Append tokens; returns how many of them belong to the text."""
        self.answer += tokens
        return self.ending.keep(tokens)


# Decides the mismatches of a block in turn (True keeps the draft's token): text number, block, the policy's logits.
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
    """Decode all texts to their ends, in place. Without an arbitrator, `decide` gets no logits."""
    rows = list(range(len(texts)))
    target, draft = (Batch(pair.models[role], len(rows), role, None, pair.vocabulary) for role in ("target", "draft"))
    policy = Batch(arbitrator, len(rows), "arbitrator", None, 1) if arbitrator is not None else None
    first = target.feed([text.prompt for text in texts])[:, -1]
    for text, token in zip(texts, draw(first, sampling, rng)[0].tolist(), strict=True):
        text.commit([token])

    def step(rows: list[int]) -> None:
        remaining = [texts[row] for row in rows]
        one_round(target, draft, policy, remaining, rows, gamma, sampling, rng, decide, hybrid)

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
    """Draft, score and decide once for each text, in place. Texts that have ended are fed too, but do not change."""
    contexts = [text.tokens for text in texts]
    drafts = propose(draft, unread(draft, contexts), gamma, sampling, rng)
    tokens = torch.stack([drafted.tokens for drafted in drafts])
    logits = target.feed(unread(target, contexts), tokens, keep=gamma + 1)
    log_probs = wide(logits[:, :gamma]).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    all_weighed, blocks = [], []
    for drafted, row in zip(drafts, logits, strict=True):
        tested = exact_test(drafted, row, sampling, rng)
        weighed = weigh(drafted, Scored(row), sampling, rng, tested)
        all_weighed.append(weighed)
        blocks.append(block_of(drafted.tokens, tested, weighed))
    scores = None
    if policy is not None and any(block.mismatches for block in blocks):
        both = torch.stack([block.tokens for block in blocks])
        heads = policy.feed(unread(policy, contexts), both, keep=2 * gamma, together=2 * gamma if hybrid else 0)
        scores = heads[:, :gamma, 0].double().tolist()
    all_surprisals = (-log_probs.double()).tolist()
    for row, (number, text, block, weighed) in enumerate(zip(numbers, texts, blocks, all_weighed, strict=True)):
        if text.ending.reason:
            continue
        policy_logits = [scores[row][i] for i in block.mismatches] if scores else []
        decisions = decide(number, block, policy_logits)
        verdict = weighed.rescue(lambda _: next(decisions))  # noqa: B023 (used at once)
        stop = verdict.accepted  # the rejected mismatch; γ if there is none
        context = len(text.tokens)
        emitted = text.commit(verdict.committed)
        reached = sum(i <= stop and i < emitted for i in block.mismatches)
        surprisals = [all_surprisals[row][i] for i in block.mismatches]
        text.turns.append(Turn(context, block, policy_logits, reached, stop < min(gamma, emitted), surprisals, emitted))
    fed = [len(text.tokens) - 1 for text in texts]  # the last token is not fed yet
    target.truncate(torch.tensor(fed))
    draft.truncate(torch.tensor(fed))
    if policy is not None:
        policy.truncate(torch.tensor([last_context(text) for text in texts]))


def last_context(text: Text) -> int:
    """The number of tokens of a text before its last round."""
    return text.turns[-1].context if text.turns else len(text.prompt)
