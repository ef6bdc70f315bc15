"""Sequoia: its trees against all trees and by hand, and texts stay the target's own, greedy and sampled."""

import functools
import heapq
import itertools

import numpy as np
import oracle
import pytest
import torch
from gates import DEVICE, GREEDY, pair
from official_cases import official_cases
from tabled import Table

from specbench.engine.session import Session
from specbench.engine.trees import exact_tree, recursive_chances
from specbench.engine.types import Draft, Sampling, Scored
from specbench.methods.trees.rsd import given_earlier
from specbench.methods.trees.sequoia import Planned, TreePlan

SHAPE = [[3], [2, 0, 1], [0, 1, 0], [0]]  # 3 after the context, 2 + 1 below them, 1 below the second of those


@functools.cache
def trees(size: int) -> list[tuple]:
    """All ordered trees of so many nodes, each as the tuple of its children."""
    if size == 1:
        return [()]
    results = []
    for first in range(1, size):
        for child, rest in itertools.product(trees(first), trees(size - first)):
            results.append((child, *rest))
    return results


def levels(tree: tuple) -> int:
    return 1 + max(map(levels, tree)) if tree else 0


def ranks(tree: tuple) -> int:
    return max([len(tree), *map(ranks, tree)])


def expected(tree: tuple, rates) -> float:
    return 1 + sum(rate * expected(child, rates) for rate, child in zip(rates, tree, strict=False))


def tree_of(shape) -> tuple:
    """A tree of a shape, level by level, as the tuple of its children."""
    below: list[tuple] = []
    for counts in reversed(shape):
        rest = iter(below)
        below = [tuple(itertools.islice(rest, count)) for count in counts]
    return below[0]


@pytest.mark.parametrize("rates", ((0.7, 0.2, 0.05), (0.3, 0.6, 0.5), (0.0, 0.9), (1.0,)), ids=str)
@pytest.mark.parametrize("most", (1, 2, 3, 8))
def test_the_best_of_all_trees(rates, most):
    for size in range(2, 8):
        every = [t for t in trees(size) if levels(t) <= most and ranks(t) <= len(rates)]
        plan = TreePlan(rates, size - 1, most)
        best = max((expected(t, rates) for t in every), default=-np.inf)
        assert plan.expected[most, size] == pytest.approx(best, abs=1e-12)
        tree = tree_of(plan.shape())
        assert expected(tree, rates) == pytest.approx(plan.expected[most].max(), abs=1e-12)
        assert levels(tree) <= most and sum(map(sum, plan.shape())) <= size - 1


def test_a_large_tree_has_the_likeliest_paths():
    """Where rates fall, the best tree has the nodes with the largest products: found one by one."""
    rates = (0.62, 0.17, 0.08, 0.03)
    heap, total = [(-rate, 1) for rate in rates], 1.0
    heapq.heapify(heap)
    for _ in range(60):
        worth, level = heapq.heappop(heap)
        total -= worth
        if level < 6:
            for rate in rates:
                heapq.heappush(heap, (worth * rate, level + 1))
    plan = TreePlan(rates, 60, 6)
    assert plan.expected[6, 61] == pytest.approx(total, abs=1e-12) == plan.expected[6].max()
    assert sum(map(sum, plan.shape())) == 60 and len(plan.shape()) == 7


def test_a_tree_by_hand():
    """Rates .6 and .3, four nodes: .6, .36 (first of the first), .3, and .216 rather than .18."""
    assert TreePlan((0.6, 0.3), 4, 5).shape() == [[2], [1, 0], [1], [0]]
    assert TreePlan((0.6, 0.3), 4, 2).shape() == [[2], [2, 0], [0, 0]]
    assert TreePlan((0.6, 0.3), 4, 5).expected[5, 5] == pytest.approx(1 + 0.6 + 0.36 + 0.3 + 0.216)
    assert TreePlan((0.6,), 9, 2).shape() == [[1], [1], [0]], "no more than there are"


def test_its_own_search_finds_the_same_trees():
    """24 sizes: the expected tokens by levels, and the best tree or one that is as good."""
    same = 0
    for case in official_cases("sequoia")["trees"]:
        plan = TreePlan(case["rates"], case["size"] - 1, case["levels"])
        ours = plan.expected[:, case["size"]]
        theirs = [-np.inf if value is None else value for value in case["expected"]]
        assert ours == pytest.approx(theirs, abs=1e-5)
        shape = plan.shape_of(case["levels"], case["size"])
        assert expected(tree_of(case["counts"]), case["rates"]) == pytest.approx(
            expected(tree_of(shape), case["rates"])
        )
        same += shape == case["counts"]
    assert same == 19


def test_its_own_test_accepts_the_same_paths(monkeypatch):
    """24 trees that were drawn without replacement, by the same random numbers; and what is left where they end."""
    lengths = []
    for case in official_cases("sequoia")["accepted"]:
        uniform, p, logits = (
            torch.tensor(case[name], device=DEVICE).double() for name in ("uniform", "target", "draft")
        )
        tokens, parents = torch.tensor(case["tokens"], device=DEVICE), tuple(case["parents"])
        monkeypatch.setattr(torch, "rand", lambda *_, numbers=uniform, **__: numbers)
        places = torch.tensor(parents, device=DEVICE) + 1
        draft = Draft(tokens, given_earlier(logits.softmax(-1)[places], tokens, places), parents)
        verdict = exact_tree(draft, Scored(p), Sampling(1.0), torch.Generator(DEVICE))
        assert list(verdict.path) == case["path"]
        left = recursive_chances(draft, draft.probs, p.softmax(-1))[2][verdict.path[-1] + 1 if verdict.path else 0]
        assert left.tolist() == pytest.approx(case["left"], abs=2e-6)
        lengths.append(len(case["path"]))
    assert sum(lengths) > 24 and max(lengths) > 2


def test_greedy_trees_have_their_shape_and_the_likeliest_tokens():
    draft, context = pair("llama")[1], oracle.prompts(1, 10)[0]
    drafted = Planned(Session(draft, "draft"), SHAPE).propose(context, 3, GREEDY, torch.Generator())
    assert drafted.parents == (-1, -1, -1, 0, 0, 2, 4) and drafted.probs is None
    tokens = drafted.tokens.tolist()
    for node, rank in ((0, 0), (1, 1), (2, 2), (3, 0), (4, 1), (5, 0), (6, 0)):
        path, at = [], drafted.parents[node]
        while at >= 0:
            path, at = [tokens[at], *path], drafted.parents[at]
        logits = oracle.next_logits(draft.cpu(), [*context, *path])
        assert tokens[node] == logits.topk(3).indices[rank]
    draft.to(DEVICE)


def test_drawn_rows_are_those_of_the_place():
    """Every row is the draft's own distribution after the node's path, without the earlier siblings."""
    session, rng = Table(6, 3), torch.Generator(DEVICE).manual_seed(1)
    for _ in range(20):
        draft = Planned(session, SHAPE).propose([5, 4], 3, Sampling(1.0), rng)
        tokens, depths = draft.tokens.tolist(), []
        for i, parent in enumerate(draft.parents):
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            q = session.row(tokens[parent] if parent >= 0 else 4, 2 + depths[i]).softmax(-1)
            q[[tokens[j] for j in range(i) if draft.parents[j] == parent]] = 0
            torch.testing.assert_close(draft.probs[i], q / q.sum())
