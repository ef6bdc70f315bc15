"""How a draft is judged by the target's logits.

`weigh` does what every rule needs, on the device and in one copy to the host: it tests each draft token under the exact
rule, and picks the token to emit if the draft ends there. A rule then decides which mismatches it keeps (`rescue`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.engine.sampling import likeliest, pick, probabilities, residual
from specbench.engine.types import Draft, Sampling, Scored, Verdict

Accept = Callable[[Draft, Scored, Sampling, torch.Generator], Verdict]


class Weighed(NamedTuple):
    """A draft of K tokens under the exact rule, on the host."""

    drafted: list[int]  # [K]
    passed: list[bool]  # [K]: accepted by exact matching (T = 0) or by rejection sampling (T > 0)
    emit: list[int]  # [K + 1]: the token to emit if the draft ends before token i; the last one is the bonus
    targets: list[int]  # [K]: argmax of the target's own raw logits, lowest index on ties
    gaps: list[float]  # [K]: z(drafted) - z(target), the target's own raw logits, ≤ 0
    columns: tuple[list[Any], ...] = ()  # further columns [K] that a method asked for, of its tensors' types
    parents: tuple[int, ...] | None = None  # [K], of a tree
    predictions: tuple[float, ...] | None = None  # [K], as in the draft
    confidences: list[float] | None = None  # [K]: q(drafted), where it was drawn at random

    @property
    def passing(self) -> int:
        """How many tokens of a chain pass before the first that does not."""
        return next((i for i, passed in enumerate(self.passed) if not passed), len(self.passed))

    @property
    def mismatches(self) -> list[int]:
        """The tokens that do not pass, in their order."""
        return [i for i, passed in enumerate(self.passed) if not passed]

    def excluded(self, i: int) -> bool:
        """True if a constraint excludes token i: no rule may keep it."""
        return self.gaps[i] == -math.inf

    def rescue(self, keeps: Callable[[int], bool]) -> Verdict:
        """Judge a chain: accept tokens that pass, and mismatches that `keeps(i)` rescues; stop at the first other one.

        `keeps` is called once for each mismatch that is reached, in their order.
        """
        rescued: list[int] = []
        for i in self.mismatches:
            if not keeps(i) or self.excluded(i):
                return self.verdict(i, tuple(rescued))
            rescued.append(i)
        return self.verdict(len(self.drafted), tuple(rescued))

    def verdict(self, accepted: int, rescued: tuple[int, ...] = ()) -> Verdict:
        """The verdict on a chain whose first `accepted` tokens are accepted."""
        return self.along(tuple(range(accepted)), rescued)

    def along(self, path: tuple[int, ...], rescued: tuple[int, ...] = ()) -> Verdict:
        """The verdict on a chain or a tree whose tokens on `path` are accepted."""
        ratios = [math.exp(gap) for gap in self.gaps]
        token = self.emit[path[-1] + 1 if path else 0]
        return Verdict(
            path,
            token,
            self.drafted,
            self.targets,
            ratios,
            rescued,
            self.parents,
            self.predictions,
            self.confidences,
        )


def exact(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
    """The rule of speculative sampling: stop at the first token that does not pass. Lossless on the target's logits.

    On logits that a method changed, greedy tokens that the target's own would have rejected are recorded as rescued.
    """
    weighed = weigh(draft, scored, sampling, rng)
    accepted = weighed.passing
    rescued: tuple[int, ...] = ()
    if sampling.greedy and scored.original is not None:
        rescued = tuple(i for i in range(accepted) if weighed.drafted[i] != weighed.targets[i])
    return weighed.verdict(accepted, rescued)


@dataclass(frozen=True)
class Tested:
    """The test of K draft tokens, on the device."""

    passed: Tensor  # [K] bool
    emit: Tensor  # [K + 1]: the token to emit if the draft ends before token i; the last one is the bonus
    p: Tensor | None = None  # [K], T > 0: p(d); a token passes where this exceeds `needed`
    needed: Tensor | None = None  # [K], T > 0: u q(d)


def exact_test(draft: Draft, logits: Tensor, sampling: Sampling, rng: torch.Generator) -> Tested:
    """Test K draft tokens under the exact rule against logits [K + 1, V].

    T = 0: a token passes if it is the argmax, and the argmax is emitted otherwise. T > 0: speculative sampling
    (Leviathan et al., arXiv 2211.17192, Algorithm 1): pass with probability min(1, p/q), else emit a draw from
    norm((p - q)₊). The residuals of all rows are drawn together; only one of them is used, so each stays independent.
    """
    tokens, count = draft.tokens, draft.tokens.shape[0]
    if sampling.greedy:
        emit = logits.argmax(-1)
        return Tested(tokens == emit[:count], emit)
    p = probabilities(logits, sampling)
    q = proposals(draft, p)
    p_draft, q_draft = (x[:count].gather(-1, tokens[:, None])[:, 0] for x in (p, q))
    needed = torch.rand(count, generator=rng, device=p.device, dtype=p.dtype) * q_draft
    return Tested(needed < p_draft, pick(residual(p, q), rng), p_draft, needed)


def beside_target(
    tested: Tested, draft: Draft, scored: Scored, p: Tensor, sampling: Sampling, rng: torch.Generator
) -> Verdict:
    """The verdict of an exact test against something other than the target's distributions p [K + 1, V].

    Tokens that p would have rejected, by the same random numbers, are recorded as rescued.
    """
    count = len(draft.tokens)
    if tested.needed is None:
        own = draft.tokens == scored.logits[:count].argmax(-1)
    else:
        own = tested.needed < p[:count].gather(-1, draft.tokens[:, None])[:, 0]
    weighed = weigh(draft, scored, sampling, rng, tested, [own])
    accepted = weighed.passing
    return weighed.verdict(accepted, tuple(i for i in range(accepted) if not weighed.columns[0][i]))


def proposals(draft: Draft, like: Tensor) -> Tensor:
    """The distributions [K + 1, V] that the tokens of a draft were drawn from, of the type of `like` [K + 1, V].

    The last row is zero: the bonus is drawn from the target's distribution.
    """
    q, count = torch.zeros_like(like), draft.tokens.shape[0]
    if draft.probs is None:
        q[:count].scatter_(-1, draft.tokens[:, None], 1.0)
    else:
        q[:count] = draft.probs
    return q


def weigh(
    draft: Draft,
    scored: Scored,
    sampling: Sampling,
    rng: torch.Generator,
    tested: Tested | None = None,
    columns: Sequence[Tensor] = (),
) -> Weighed:
    """Copy a draft of K tokens, its test and the target's view of it to the host, all at once.

    `tested` is the exact test unless a method has its own; `columns` are further tensors [K] that the method needs on
    the host.

    Raises:
        ValueError: the draft is a tree, and no `tested` comes with it: `trees.exact_tree` judges trees.
    """
    if draft.parents is not None and tested is None:
        raise ValueError("a tree is not judged as a chain: see exact_tree, or bring its test")
    if sampling.greedy and not columns and tested is None and scored.original is None:
        return _weigh_greedy_chain(draft, scored)
    tokens = draft.tokens
    original = predicting_rows(draft, scored.logits) if scored.original is None else scored.original
    highest, targets = original.max(-1)
    gaps = original.gather(-1, tokens[:, None])[:, 0] - highest
    test = tested or exact_test(draft, scored.logits, sampling, rng)
    confidence = [] if draft.probs is None else [draft.probs.gather(-1, tokens[:, None])[:, 0]]
    on_device = tokens, test.passed, test.emit, targets, gaps, *columns, *confidence
    drafted, passed, emit, preferred, differences, *others = on_host_together(*on_device)
    return Weighed(
        drafted=drafted,
        passed=passed,
        emit=emit,
        targets=preferred,
        gaps=differences,
        columns=tuple(others[: len(columns)]),
        parents=None if draft.parents is None else tuple(draft.parents),
        predictions=draft.predictions,
        confidences=others[-1] if confidence else None,
    )


def _weigh_greedy_chain(draft: Draft, scored: Scored) -> Weighed:
    """`weigh` for a greedy chain and the target's own logits [K + 1, V], which are read only once."""
    logits, tokens, count = scored.logits, draft.tokens, draft.tokens.shape[0]
    read = scored.read
    if read or on_host(logits):  # there is no copy to save, and numpy takes a tenth of the time
        _, rows, emit = read or likeliest(logits)
        drafted = tokens.tolist() if draft.ids is None else draft.ids
        gaps = [
            0.0 if token == emit[i] else float(rows[i, token] - rows[i, emit[i]]) for i, token in enumerate(drafted)
        ]
    else:
        highest, best = logits.max(-1)
        differences = logits[:count].gather(-1, tokens[:, None])[:, 0] - highest[:count]
        drafted, gaps, emit = on_host_together(tokens, differences, best)
    return Weighed(
        drafted=drafted,
        passed=[token == best for token, best in zip(drafted, emit, strict=False)],
        emit=emit,
        targets=emit[:count],
        gaps=gaps,
        predictions=draft.predictions,
    )


def on_host_together(*parts: Tensor) -> list[list[Any]]:
    """Tensors [n] of booleans, ids or floats as lists of these types, copied from their device at once.

    If one has floats, all are copied as float64, in which ids are exact.
    """
    values = iter(torch.cat([part.double() if part.is_floating_point() else part for part in parts]).tolist())
    kinds = (bool if part.dtype == torch.bool else float if part.is_floating_point() else int for part in parts)
    return [[kind(next(values)) for _ in range(len(part))] for part, kind in zip(parts, kinds, strict=True)]


def on_host(values: Tensor) -> bool:
    """True if numpy can read the values where they are."""
    return values.device.type == "cpu" and values.dtype.itemsize >= 4


def predicting_rows(draft: Draft, rows: Tensor) -> Tensor:
    """The rows [K, …] that predict the drafted tokens, of rows [K + 1, …] after the context and each drafted token."""
    return rows[: draft.tokens.shape[0]] if draft.rows is None else rows[draft.rows]
