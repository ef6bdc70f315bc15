"""The audit's sampling test: are the tokens of many draws distributed as the target's at the positions of the draws?"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specbench.base.stats import ChiSquare, chi_square
from specbench.engine.sampling import probabilities
from specbench.engine.session import Session
from specbench.engine.types import Method, Sampling
from specbench.measure.divergence import Reference

SAMPLINGS = (Sampling(1.0), Sampling(1.0, top_p=0.8))
DRAWN_TOKENS = 4  # of a draw: the prefill's token, and those of the round that follows it
MOST_DRAWN = 24  # of a method that drafts only after a few rounds
POSITIONS = 2  # of each document's text, where draws begin
NUCLEUS_SLACK = 1e-3  # tokens this close to the edge of the top-p set may fall on either side by rounding
CLASSES = 4  # of tokens: over-proposed by the draft (q > p) or not, times the target's likeliest or not


@dataclass(frozen=True)
class SamplingTest:
    """One sampling test of a method."""

    sampling: Sampling
    test: ChiSquare
    impossible: int  # tokens that the target's distribution does not hold
    level: float

    @property
    def passed(self) -> bool:
        return self.impossible == 0 and self.test.p >= self.level


@dataclass(frozen=True)
class Start:
    """Where a text begins: a document's prompt, or a place within its answer."""

    task: str
    doc_id: int
    ids: list[int]
    at: int = 0  # tokens of the answer among `ids`


def telling_places(reference: Reference, prompt: Start, text: list[int]) -> Iterator[Start]:
    """The POSITIONS of a text where a wrong residual would show most, as prompts to draw from.

    If a rejected token's substitute is drawn from p instead of norm((p - q)₊), the tokens follow
    min(p, q) + (1 - Σ min(p, q)) p. How far that is from p says how much depends on the rule at a position. Without a
    draft, the positions are those where the target is least sure. A draw begins one token earlier, because its first
    token is the prefill's, which no method drafts.
    """
    rows = {}
    for role, session in _sessions(reference).items():
        first = session.restart(prompt.ids).logits
        rows[role] = torch.cat([first, session.forward(text[:-1]).logits]).double()
    p = reference.expected(rows, SAMPLINGS[0])
    telling = 1 - p.max(-1).values
    if "draft" in rows:
        both = torch.minimum(p, probabilities(rows["draft"], SAMPLINGS[0]))
        telling = (both - both.sum(-1, keepdim=True) * p).abs().sum(-1)
    for at in telling[1:].topk(min(POSITIONS, len(text) - 1)).indices.tolist():
        yield Start(prompt.task, prompt.doc_id, [*prompt.ids, *text[:at]], at)


def _sessions(reference: Reference) -> dict[str, Session]:
    """Sessions of the models that the reference needs, and of the draft if there is one."""
    roles = dict.fromkeys((*reference.roles, *(["draft"] if "draft" in reference.pair.models else [])))
    return {role: reference.pair.session(role) for role in roles}


def check_sampling(
    method: Method,
    reference: Reference,
    prompts: Sequence[Start],
    sampling: Sampling,
    draws: int,
    level: float,
    advance: Callable[[int], None],
) -> SamplingTest:
    """Draw short texts, and test each token against the target's distribution after the tokens drawn before it."""
    rng = torch.Generator(reference.pair.device).manual_seed(0)
    sessions = _sessions(reference)
    classes, expected, impossible = [], [], 0
    for prompt in prompts:
        first = {role: session.restart(prompt.ids).logits for role, session in sessions.items()}
        for _ in range(draws):
            tokens, before = _draw(method, prompt, sampling, rng)
            rows = {}
            for role, session in sessions.items():
                session.truncate(len(prompt.ids))
                rows[role] = torch.cat([first[role], session.forward(tokens[:-1]).logits])[before:].double()
            drawn, probs, outside = classify(tokens[before:], rows, reference, sampling)
            classes += drawn
            expected.append(probs)
            impossible += outside
            advance(1)
    toward = np.array([0.0, 0.0, 1.0, 1.0])
    return SamplingTest(
        sampling, chi_square(np.array(classes), np.concatenate(expected), toward, level), impossible, level
    )


def _draw(method: Method, prompt: Start, sampling: Sampling, rng: torch.Generator) -> tuple[list[int], int]:
    """Draw until there are a few tokens from rounds that tested a draft; also return how many tokens precede them.

    At least the prefill's token precedes them, and more do while the method has no draft. After MOST_DRAWN tokens
    without a draft, the next ones will do. Tokens seen to come without a draft are not tested, because whether a draft
    came may depend on what they are.
    """
    method.reset()
    tokens: list[int] = []
    before, drafting = 0, False
    for round_ in method.rounds(prompt.ids, sampling, rng):
        drafting = drafting or round_.verdict is not None or (method.reach == 1 and before > 0)
        before += 0 if drafting else len(round_.tokens)
        tokens += round_.tokens
        drafting = drafting or before >= MOST_DRAWN
        if drafting and len(tokens) >= before + DRAWN_TOKENS - 1:
            return tokens[: before + DRAWN_TOKENS - 1], before
    raise ValueError("the method stopped decoding by itself")


def classify(
    tokens: list[int], rows: dict[str, torch.Tensor], reference: Reference, sampling: Sampling
) -> tuple[list[int], np.ndarray[Any, np.dtype[np.float64]], int]:
    """Classes of drawn tokens [n], the probabilities of the classes [n, CLASSES], and how many tokens were impossible.

    `rows` are the logits [n, V] of the models by role, with the draft's if the pair has one.
    """
    p = reference.expected(rows, sampling)
    over = probabilities(rows["draft"], sampling) > p if "draft" in rows else torch.zeros_like(p, dtype=torch.bool)
    likeliest = torch.zeros_like(over).scatter(-1, p.argmax(-1, keepdim=True), True)
    kind = 2 * over.long() + (~likeliest).long()  # [n, V]
    at = torch.tensor(tokens, device=p.device)[:, None]
    probs = torch.zeros(len(tokens), CLASSES, dtype=p.dtype, device=p.device).scatter_add_(-1, kind, p)
    wider = Sampling(sampling.temperature, sampling.top_k, min(1.0, sampling.top_p + NUCLEUS_SLACK))
    possible = reference.expected(rows, wider).gather(-1, at) > 0
    return kind.gather(-1, at)[:, 0].tolist(), probs.cpu().numpy(), int((~possible).sum())
