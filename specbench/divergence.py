"""Where a greedy lossless method leaves vanilla decoding: a numeric tie, or a bug?

Blocks of other shapes round otherwise, so in low precision two near-equal logits may swap. The target's own top-2 gap
at the first differing token tells: within rounding of a tie, or far from it.
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
    gap: float  # between the target's two highest logits there
    kind: str  # "tie" or "bug"


def diverged(target: Session, prompt: list[int], vanilla: list[int], tokens: list[int]) -> Divergence | None:
    """Compare a method's greedy tokens with vanilla's; None if they agree. Uses `target` (and its cache) once."""
    if tokens == vanilla:
        return None
    pairs = enumerate(zip(vanilla, tokens, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(vanilla), len(tokens)))
    first, second = target.restart([*prompt, *vanilla[:at]]).logits[-1].double().topk(2).values.tolist()
    gap = first - second
    return Divergence(at, gap, "tie" if gap <= TIES[target.model.dtype] else "bug")
