"""How far two computations of the same logits are apart: what rounding explains, and what it does not."""

import math

from torch import Tensor, nn

# The share of the spread of logits by which rounding may move them, by bytes of a number; norms of 8 compute in 4.
TOLERANCE = {2: 0.2, 4: 0.01, 8: 0.01}


def tolerance(model: nn.Module) -> float:
    """How far two computations of a model's logits may be apart, as a share of their spread.

    What enters a weight in fewer bits may be rounded to fewer bytes than the weight's type has (`models.packed`).
    """
    sizes = [getattr(weight, "computed_bytes", weight.dtype.itemsize) for weight in model.parameters()]
    return max(TOLERANCE.get(size, 0.0) for size in sizes)


def off(actual: Tensor, expected: Tensor) -> float:
    """The largest difference of two logits [n, V], as a share of the spread of `expected`; ∞ if one alone is finite.

    A translated draft's logits are -inf for tokens that it lacks, in both. A broken model's may be finite nowhere: 0 if
    both are.
    """
    finite = expected.isfinite()
    if not (actual.isfinite() == finite).all():
        return math.inf
    known = expected[finite].double()  # whose squares stay finite
    if not len(known):
        return 0.0
    spread = float(known.std(correction=0)) or 1.0
    return float((actual[finite].double() - known).abs().max()) / spread
