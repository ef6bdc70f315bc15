"""Rules compared on the same drafts: figures by hand, by enumeration, and of a small run."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from specbench_extras.rules.study import RULES, Compared, figure_table
from specbench_extras.rules.view import view

P = torch.tensor([[0.2, 0.8], [0.2, 0.8]], dtype=torch.float64)
Q = torch.tensor([[0.8, 0.2], [0.8, 0.2]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("rule", "drafted", "expected"),
    [
        # Drafted 0 1: p/q = 1/4, 4. One by one: 1/4, then 1/4. As a block: w = 1/4, 1.
        ("token", [0, 1], 0.25 + 0.25),
        ("block", [0, 1], 0.25 + 1.0),
        ("token", [1, 0], 1.0 + 0.25),
        ("block", [1, 0], 1.0 + 0.25),
        # Lenience 0.6: min(1, 1 / (4 · 0.6)) = 5/12.
        ("lenience", [0, 0], 5 / 12 + (5 / 12) ** 2),
        # H = 0.5004, exp(-H) = 0.606, δ exp(-H) = 0.055: both tokens are typical.
        ("typical", [0, 1], 2.0),
        # max q = max p: the draft speaks, so all of its tokens are kept.
        ("cascade", [0, 0], 2.0),
        ("cascade-diff", [0, 0], 2.0),
        # By chow it speaks from max q = 0.9 on: here the target does.
        ("cascade-chow", [0, 0], 0.25 + 0.25**2),
    ],
)
def test_figures_by_hand(rule, drafted, expected):
    assert float(RULES[rule](torch.tensor(drafted), P, Q)) == pytest.approx(expected, abs=1e-12)


def test_nothing_is_kept_after_a_token_that_is_not_typical():
    """p(0) = 0.02: H = 0.098, δ exp(-H) = 0.0816, which it does not reach; the token after it would be typical."""
    rare = torch.tensor([[0.02, 0.98], [0.2, 0.8]], dtype=torch.float64)
    kept = [float(RULES["typical"](torch.tensor(drafted), rare, Q)) for drafted in ([0, 1], [1, 0])]
    assert kept == [0.0, 2.0]


def test_a_block_never_keeps_fewer_than_single_tokens():
    rng = np.random.default_rng(0)
    for _ in range(50):
        p, q = (torch.tensor(rng.dirichlet(np.ones(3), 3)) for _ in range(2))
        for drafted in itertools.product(range(3), repeat=3):
            tokens = torch.tensor(drafted)
            assert RULES["block"](tokens, p, q) >= RULES["token"](tokens, p, q) - 1e-12


def test_a_table_by_hand():
    """Two documents: 2 drafts with 2 tokens one by one and 4 as blocks in all, 1 draft with 1 and 2."""
    sums = np.zeros((2, len(RULES)))
    sums[:, 0], sums[:, 1] = (2, 1), (4, 2)
    table = figure_table([("a", 0), ("a", 1)], sums, np.array([2.0, 1.0]))
    assert list(table.rule) == list(RULES) and list(table.lossless) == [True] * 2 + [False] * 5
    assert (table["value"][0], table["value"][1], table.over[1]) == (1.0, 2.0, 1.0)
    finding = view(Compared("T=1", ["sps"], 3, 2, table))
    assert isinstance(table, pd.DataFrame) and finding.sheets[0].rows[1][:2] == ["as a block", "yes"]
