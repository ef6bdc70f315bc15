"""How far two computations of logits are apart, on numbers that are worked out by hand."""

import math

import pytest
import torch

from specbench.engine.runtimes.reference import off

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    "actual, expected, result",
    (
        ([1.0, 3.0, 5.5], [1.0, 3.0, 5.0], 0.5 / math.sqrt(8 / 3)),
        ([2.0, 2.25], [2.0, 2.0], 0.25),  # which have no spread
        ([-INF, 1.0, 3.0], [-INF, 1.0, 3.5], 0.5 / 1.25),
        ([-INF, 1.0, 3.0], [0.0, 1.0, 3.0], INF),
        ([0.0, 1.0, NAN], [0.0, 1.0, 3.0], INF),
        ([0.0, 1.0, 3.0], [0.0, 1.0, NAN], INF),
        ([NAN, NAN], [NAN, NAN], 0.0),
        ([3e38, -3e38], [3e38, -2.7e38], 0.3e38 / 2.85e38),  # whose squares are no float32
        ([INF, 4.0], [INF, 4.5], 0.5),
    ),
)
def test_the_largest_difference_as_a_share_of_the_spread(actual, expected, result):
    assert off(torch.tensor([actual]), torch.tensor([expected])) == pytest.approx(result, rel=1e-6)
