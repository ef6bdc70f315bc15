"""The size of a draft's vocabulary: the scan by hand and against a loop, and the fit of forward times."""

import numpy as np
import pytest

from specbench_extras.vocabtrim.size import Costs, best_size, fitted, speeds


def test_three_sizes_by_hand():
    """γ = 2: 1 + c + c² is 1.75, 2.44 and 3 tokens; a round takes 1 + 2 (0.1 + 0.2 k) = 1.6, 2.0 and 2.4 seconds."""
    coverage, costs = np.array([0.5, 0.8, 1.0]), Costs(target=1.0, body=0.1, row=0.2)
    assert speeds(coverage, costs, 2) == pytest.approx([1.75 / 1.6, 2.44 / 2.0, 3 / 2.4])
    assert best_size(coverage, costs, 2) == 3
    assert best_size(coverage, Costs(1.0, 0.1, 0.3), 2) == 2  # 1.75/1.8, 2.44/2.4, 3/3
    assert best_size(coverage, Costs(0.0, 0.0, 1.0), 2) == 1  # 1.75/2, 2.44/4, 3/6


def test_the_scan_is_exact():
    rng = np.random.default_rng(0)
    for _ in range(20):
        coverage = np.sort(rng.random(50))
        costs, gamma = Costs(*rng.random(3) * [1, 0.1, 0.02]), int(rng.integers(1, 8))
        best, highest = 0, -1.0
        for k in range(1, 51):
            tokens = sum(coverage[k - 1] ** i for i in range(gamma + 1))
            speed = tokens / (costs.target + gamma * (costs.body + costs.row * k))
            if speed > highest + 1e-12:
                best, highest = k, speed
        assert best_size(coverage, costs, gamma) == best


def test_free_rows_keep_all_that_occur():
    coverage = np.array([0.6, 0.9, 1.0, 1.0])
    assert best_size(coverage, Costs(1.0, 0.1, 0.0), 3) == 3


def test_times_are_fitted_and_never_negative():
    assert fitted([8, 4, 1], [0.26, 0.18, 0.12]) == pytest.approx((0.1, 0.02))
    assert fitted([8, 4, 1], [0.1, 0.2, 0.3])[1] == 0
    assert fitted([8, 4, 1], [0.8, 0.4, 0.09])[0] == 0
