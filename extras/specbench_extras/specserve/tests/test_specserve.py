"""SpecServe's draft length by hand."""

import math

import pytest
import torch
from builders_engine import build
from refusals import one_line_error

from specbench.engine.lengths import DraftToken
from specbench_extras.specserve.specserve import Efficiency


def test_specserve_by_hand():
    """A cost of .5 a token. One token of .8 promises 1.8 in 1.5 = 1.2; two 2.44 in 2 = 1.22, so the draft goes on.

    Then a token of .5: 1 + .8 + .4 = 2.2 in 2 = 1.1; with another one 2.4 in 2.5 = .96. So it ends, unless the
    threshold is below .96 / 1.1 = .873.
    """
    for threshold, stops in ((1.0, True), (0.88, True), (0.86, False)):
        lengths = Efficiency(0.5, threshold, shortest=1)
        lengths.most(20, 10)
        results = [lengths.enough(step, chance(q)) for step, q in ((1, 0.8), (2, 0.5))]
        assert results == [False, stops]
        assert lengths.predictions(3) == pytest.approx((0.8, 0.5, math.nan), nan_ok=True)


def chance(q: float) -> DraftToken:
    """A token that was drawn with probability q."""
    probs = torch.tensor([[q, 1 - q]], dtype=torch.float64)
    return DraftToken(torch.tensor([0]), probs.log(), probs, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"draft": 0}, "specserve: draft"), ({"shortest": 30}, "30 is more than longest (20)")],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "specserve", **changes)
