"""The bandit over draft lengths against LinUCB written out."""

import math

import numpy as np
import pytest
import torch
from builders_engine import build
from refusals import one_line_error

from specbench.engine.lengths import DraftToken
from specbench.engine.types import Verdict
from specbench_extras.bandit.bandit import Bandit


def test_the_bandit_is_linucb_on_what_a_round_brings():
    """The same decisions as Algorithm 1 written out with its sums, over made-up rounds."""
    rng = np.random.default_rng(0)
    arms, cost, alpha = (1, 3, 6), 0.1, 0.7
    bandit = Bandit(arms, cost, alpha)
    gram = [np.eye(3) for _ in arms]
    sums = [np.array([k + 1.0, 0, 0]) for k in arms]
    tokens = spent = 0.0
    chosen = []
    for _ in range(300):
        sure = rng.random() < 0.5
        q = torch.tensor([0.95, *rng.dirichlet([1.0] * 5) * 0.05] if sure else rng.dirichlet([9.0] * 6))
        token = torch.tensor([int(q.argmax())])
        bandit.most(20, 5)
        stops = [bandit.enough(step, DraftToken(token, q[None].log(), q[None], None)) for step in range(1, 7)]
        x = np.array([1.0, float(q.max()), -sum(float(v) * math.log(float(v)) for v in q if v > 0)])
        bounds = [
            np.linalg.solve(a, b) @ x
            + alpha * math.sqrt(x @ np.linalg.solve(a, x))
            - (tokens / spent if spent else 0.0) * (1 + cost * k)
            for a, b, k in zip(gram, sums, arms, strict=True)
        ]
        arm = int(np.argmax(bounds))
        assert stops.index(True) + 1 == arms[arm]
        stood = int(min(arms[arm], rng.geometric(0.05 if sure else 0.8) - 1))
        bandit.observe(Verdict(tuple(range(stood)), 0, [1] * arms[arm], [1] * arms[arm], [1.0] * arms[arm]))
        tokens, spent = tokens + stood + 1, spent + 1 + cost * arms[arm]
        gram[arm] += np.outer(x, x)
        sums[arm] += (stood + 1) * x
        chosen.append((sure, arms[arm]))
    for_sure, unsure = ([arm for sure, arm in chosen[100:] if sure is kind] for kind in (True, False))
    assert np.mean(for_sure) > 5 and np.mean(unsure) < 2
    again = Bandit(arms, cost, alpha)
    again.restore(bandit.state())
    assert again.state() == bandit.state()
    again.reset()
    assert again.state() == Bandit(arms, cost, alpha).state()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"choices": [2, 2]}, "choices: must be different lengths from 1 to longest"),
        ({"choices": [2, 30]}, "from 1 to longest (20)"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "bandit", **changes)
