"""How a draft is judged against the target's logits.

`weigh` does what every rule needs, on the device and without a host round trip: the exact test of each draft token and
the token to emit if the scan stops there. A rule then says at which mismatches it goes on all the same.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from specbench.decoding.sampling import pick, probabilities, residual
from specbench.decoding.types import Draft, Sampling, Scored, Verdict

Accept = Callable[[Draft, Scored, Sampling, torch.Generator], Verdict]


@dataclass(frozen=True)
class Weighed:
    """A draft of K tokens under the exact rule, on the host."""

    drafted: list[int]  # [K]
    passed: list[bool]  # [K]: kept by exact matching (T = 0) or by rejection sampling (T > 0)
    emit: list[int]  # [K + 1]: the token to emit if the scan stops at i; the last one is the bonus
    targets: list[int]  # [K]: argmax of the target's raw logits, lowest index on ties
    gaps: list[float]  # [K]: z(drafted) - z(target), raw logits, ≤ 0

    def verdict(self, accepted: int, rescued: tuple[int, ...] = ()) -> Verdict:
        ratios = [math.exp(gap) for gap in self.gaps]
        return Verdict(accepted, self.emit[accepted], self.drafted, self.targets, ratios, rescued)


def weigh(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Weighed:
    """Test a draft of K tokens against the target's logits [K + 1, V]; one copy to the host.

    T = 0: a token passes if it is the argmax, and the argmax is emitted otherwise. T > 0: speculative sampling
    (Leviathan et al., arXiv 2211.17192, Algorithm 1): pass with probability min(1, p/q), else emit a draw from
    norm((p - q)₊). The residuals of all rows are drawn together; only one of them is used, so each stays independent.
    """
    logits, tokens = scored.logits, draft.tokens
    count = tokens.shape[0]
    highest, best = logits.max(-1)
    gaps = logits[:count].gather(-1, tokens[:, None])[:, 0] - highest[:count]
    if sampling.greedy:
        passed, emit = tokens == best[:count], best
    else:
        p = probabilities(logits, sampling)
        q = torch.zeros_like(p)  # the last row stays zero: the bonus is drawn from p
        if draft.probs is None:
            q[:count].scatter_(-1, tokens[:, None], 1.0)
        else:
            q[:count] = draft.probs
        at = tokens[:, None]
        u = torch.rand(count, generator=rng, device=p.device, dtype=p.dtype)
        passed = u * q[:count].gather(-1, at)[:, 0] < p[:count].gather(-1, at)[:, 0]
        emit = pick(residual(p, q), rng)
    # Ids are exact in float64, so that everything crosses to the host in one copy.
    packed = torch.cat([tokens.double(), passed.double(), emit.double(), best[:count].double(), gaps.double()]).tolist()
    as_ids = [int(x) for x in packed[: 4 * count + 1]]
    return Weighed(
        drafted=as_ids[:count],
        passed=[x == 1 for x in as_ids[count : 2 * count]],
        emit=as_ids[2 * count : 3 * count + 1],
        targets=as_ids[3 * count + 1 :],
        gaps=packed[4 * count + 1 :],
    )


def exact(draft: Draft, scored: Scored, sampling: Sampling, rng: torch.Generator) -> Verdict:
    """Speculative sampling's own rule: stop at the first token that does not pass. Lossless."""
    weighed = weigh(draft, scored, sampling, rng)
    accepted = next((i for i, passed in enumerate(weighed.passed) if not passed), len(weighed.passed))
    return weighed.verdict(accepted)
