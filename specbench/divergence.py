"""Where a greedy lossless method leaves standard decoding: a numeric tie, or a bug?

Blocks of other shapes round otherwise, so in low precision two near-equal logits may swap. The reference's own logits
at the first differing token tell: both tokens within rounding of the highest, or one of them far from it. A text that
is a mere beginning of the other is never a tie.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decoding.combine import Combination
from specbench.decoding.sampling import probabilities
from specbench.decoding.types import Sampling
from specbench.models import Pair

# The largest top-2 logit gap that rounding can overturn, by dtype: our inference, some units in the last place of the
# logits of common models after all layers (norms and attention compute in float32 even in a float64 model).
TIES = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


@dataclass(frozen=True)
class Divergence:
    at: int  # index of the first differing token of the text
    gap: float  # between the target's highest logit there and the lower one of the two tokens
    kind: str  # "tie" or "bug"


class Reference:
    """What a lossless method is exact for: the target, or the combination of the models that decode together."""

    def __init__(self, pair: Pair, combination: Combination | None) -> None:
        self.pair, self.combination = pair, combination

    @property
    def roles(self) -> tuple[str, ...]:
        """The models that it needs."""
        return self.pair.collaboration if self.combination else ("target",)

    def expected(self, logits: Mapping[str, Tensor], sampling: Sampling) -> Tensor:
        """The distributions [n, V] that tokens follow at T > 0, of the logits [n, V] of the models by role.

        At T = 0 scores whose argmax is the token, in units of logits.
        """
        if self.combination is None:
            return logits["target"] if sampling.greedy else probabilities(logits["target"], sampling)
        rows = [self.combination.rows(logits[role], sampling) for role in self.roles]
        found = self.combination.combined(rows, sampling)
        return found.log() if sampling.greedy and self.combination.level == "probabilities" else found

    def scores(self, context: list[int]) -> Tensor:
        """Greedy scores [V] of the token behind a context, by a fresh forward of every model."""
        logits = {role: self.pair.session(role).restart(context).logits.double() for role in self.roles}
        return self.expected(logits, Sampling())[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self.pair.models["target"].dtype


def diverged(reference: Reference, prompt: list[int], vanilla: list[int], tokens: list[int]) -> Divergence | None:
    """Compare a method's greedy tokens with the standard ones; None if they agree."""
    if tokens == vanilla:
        return None
    pairs = enumerate(zip(vanilla, tokens, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(vanilla), len(tokens)))
    logits = reference.scores([*prompt, *vanilla[:at]])
    chosen = [one[at] for one in (vanilla, tokens) if at < len(one)]
    gap = float(logits.max() - logits[chosen].min()) if len(chosen) == 2 else float("inf")
    return Divergence(at, gap, "tie" if gap <= TIES[reference.dtype] else "bug")
