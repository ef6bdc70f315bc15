"""Where a greedy lossless method leaves vanilla decoding: a numeric tie, or a bug?

Blocks of other shapes round otherwise, so in low precision two near-equal logits may swap. The target's own logits at
the first differing token tell: both tokens within rounding of the highest, or one of them far from it. A text that is
a mere beginning of the other is never a tie.
"""

from dataclasses import dataclass

import torch

from specbench.decoding.session import Session

# The largest top-2 logit gap that rounding can overturn, by dtype: our inference, some units in the last place of the
# logits of common models after all layers (norms and attention compute in float32 even in a float64 model).
TIES = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


@dataclass(frozen=True)
class Divergence:
    at: int  # index of the first differing token of the text
    gap: float  # between the target's highest logit there and the lower one of the two tokens
    kind: str  # "tie" or "bug"


def diverged(target: Session, prompt: list[int], vanilla: list[int], tokens: list[int]) -> Divergence | None:
    """Compare a method's greedy tokens with vanilla's; None if they agree. Uses `target` (and its cache) once."""
    if tokens == vanilla:
        return None
    pairs = enumerate(zip(vanilla, tokens, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(vanilla), len(tokens)))
    logits = target.restart([*prompt, *vanilla[:at]]).logits[-1].double()
    chosen = [one[at] for one in (vanilla, tokens) if at < len(one)]
    gap = float(logits.max() - logits[chosen].min()) if len(chosen) == 2 else float("inf")
    return Divergence(at, gap, "tie" if gap <= TIES[target.model.dtype] else "bug")
