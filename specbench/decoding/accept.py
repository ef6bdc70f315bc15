"""How a draft is judged against the target's logits.

`weigh` does what every rule needs, on the device and without a host round trip: the exact test of each draft token and
the token to emit if the scan stops there. A rule then says at which mismatches it goes on all the same.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.sampling import pick, probabilities, residual
from specbench.decoding.types import Draft, Sampling, Scored, Verdict

Accept = Callable[[Draft, Scored, Sampling, torch.Generator], Verdict]


class Weighed(NamedTuple):
    """A draft of K tokens under the exact rule, on the host."""

    drafted: list[int]  # [K]
    passed: list[bool]  # [K]: kept by exact matching (T = 0) or by rejection sampling (T > 0)
    emit: list[int]  # [K + 1]: the token to emit if the scan stops at i; the last one is the bonus
    targets: list[int]  # [K]: argmax of the target's own raw logits, lowest index on ties
    gaps: list[float]  # [K]: z(drafted) - z(target), the target's own raw logits, ≤ 0
    also: tuple[list[float], ...] = ()  # columns [K] that a method asked for
    parents: tuple[int, ...] | None = None  # of a tree
    predictions: tuple[float, ...] | None = None  # [K], as in the draft
    confidences: list[float] | None = None  # [K]: q(drafted), where it was drawn at random

    def verdict(self, accepted: int, rescued: tuple[int, ...] = ()) -> Verdict:
        """Of a chain, whose first `accepted` tokens stand."""
        return self.along(tuple(range(accepted)), rescued)

    def along(self, path: tuple[int, ...], rescued: tuple[int, ...] = ()) -> Verdict:
        """Of a chain or a tree, whose tokens on `path` stand."""
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


@dataclass(frozen=True)
class Tested:
    """The test of K draft tokens, on the device."""

    passed: Tensor  # [K] bool
    emit: Tensor  # [K + 1]: the token to emit if the scan stops at i; the last one is the bonus
    p: Tensor | None = None  # [K], T > 0: p(d), which passes where it is more than
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
    q = torch.zeros_like(p)  # the last row stays zero: the bonus is drawn from p
    if draft.probs is None:
        q[:count].scatter_(-1, tokens[:, None], 1.0)
    else:
        q[:count] = draft.probs
    p_draft, q_draft = (x[:count].gather(-1, tokens[:, None])[:, 0] for x in (p, q))
    needed = torch.rand(count, generator=rng, device=p.device, dtype=p.dtype) * q_draft
    return Tested(needed < p_draft, pick(residual(p, q), rng), p_draft, needed)


def weigh(
    draft: Draft,
    scored: Scored,
    sampling: Sampling,
    rng: torch.Generator,
    tested: Tested | None = None,
    also: Sequence[Tensor] = (),
) -> Weighed:
    """Bring a draft of K tokens, its test and the target's view of it to the host, in one copy.

    `tested` is the exact test unless a method has its own; `also` are further columns [K] that it needs there.
    """
    if sampling.greedy and not also and tested is None and scored.original is None and draft.parents is None:
        return _matched(draft, scored.logits)
    tokens = draft.tokens
    count = tokens.shape[0]
    own = predicting(draft, scored.logits) if scored.original is None else scored.original
    highest, targets = own.max(-1)
    gaps = own.gather(-1, tokens[:, None])[:, 0] - highest
    test = tested or exact_test(draft, scored.logits, sampling, rng)
    also = list(also)
    if draft.probs is not None:
        also.append(draft.probs.gather(-1, tokens[:, None])[:, 0])
    # Ids are exact in float64, to which the gaps bring all the rest, so that everything crosses in one copy.
    host = torch.cat((tokens, test.passed, targets, gaps.double(), *also, test.emit)).tolist()
    drafted, passed, preferred, differences, *others = (host[i * count : (i + 1) * count] for i in range(4 + len(also)))
    confidences = others.pop() if draft.probs is not None else None
    return Weighed(
        drafted=[int(x) for x in drafted],
        passed=[x == 1 for x in passed],
        emit=[int(x) for x in host[-count - 1 :]],
        targets=[int(x) for x in preferred],
        gaps=differences,
        also=tuple(others),
        parents=draft.parents,
        predictions=draft.predictions,
        confidences=confidences,
    )


def _matched(draft: Draft, logits: Tensor) -> Weighed:
    """A greedy chain against the target's own logits [K + 1, V], which need be read once only."""
    tokens, count = draft.tokens, draft.tokens.shape[0]
    if on_host(logits):  # no copy to save; numpy takes a tenth of the time
        known = logits.numpy()
        emit, drafted = known.argmax(-1).tolist(), tokens.tolist()
        gaps = [float(known[i, token] - known[i, emit[i]]) for i, token in enumerate(drafted)]
    else:
        highest, best = logits.max(-1)
        differences = logits[:count].gather(-1, tokens[:, None])[:, 0] - highest[:count]
        host = torch.cat((tokens, differences.double(), best)).tolist()
        drafted, emit = ([int(x) for x in part] for part in (host[:count], host[2 * count :]))
        gaps = host[count : 2 * count]
    return Weighed(
        drafted=drafted,
        passed=[token == own for token, own in zip(drafted, emit, strict=False)],
        emit=emit,
        targets=emit[:count],
        gaps=gaps,
        predictions=draft.predictions,
    )


def on_host(values: Tensor) -> bool:
    """Whether numpy can read them where they are."""
    return values.device.type == "cpu" and values.dtype.itemsize >= 4


def predicting(draft: Draft, rows: Tensor) -> Tensor:
    """Of rows [K + 1, …] behind the context and each drafted token, those [K, …] that predict the drafted tokens."""
    return rows[: draft.tokens.shape[0]] if draft.rows is None else rows[draft.rows]


def exact(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
    """Speculative sampling's own rule: stop at the first token that does not pass. Lossless on the target's own logits.

    On other logits, greedy tokens that the target's own would have rejected are noted as rescued.
    """
    weighed = weigh(draft, scored, sampling, rng)
    accepted = next((i for i, passed in enumerate(weighed.passed) if not passed), len(weighed.passed))
    rescued: tuple[int, ...] = ()
    if sampling.greedy and scored.original is not None:
        rescued = tuple(i for i in range(accepted) if weighed.drafted[i] != weighed.targets[i])
    return weighed.verdict(accepted, rescued)
