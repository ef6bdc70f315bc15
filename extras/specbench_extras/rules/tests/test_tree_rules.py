"""Rules for trees compared on the same drafts: figures by hand, by enumeration, and next to what runs accepted."""

import itertools

import numpy as np
import pytest
import torch
from enumerated import laws
from tiny_runs import TASKS, always, plan_of, rounds_of, save_pair, write_suite

from specbench.config import load_method
from specbench.engine.types import Draft
from specbench.measure import loop
from specbench.results.stored import StoredRun
from specbench_extras.rules import study as rules
from specbench_extras.rules.tree_rules import RULES, of_tree, rules_of
from specbench_extras.rules.view import view

HALVES = torch.tensor([[0.5, 0.5]] * 5, dtype=torch.float64)


def tree(tokens, q, parents) -> Draft:
    return Draft(torch.tensor(tokens), torch.tensor(q).double(), parents)


def test_siblings_by_hand():
    """0 passes with 0.2/0.5; then p is 0 2/3 1/3 and 2, drawn from 0.6 0.4 of 1 and 2, passes with (1/3)/0.4."""
    drafted = tree([0, 2], [[0.5, 0.3, 0.2], [0.0, 0.6, 0.4]], (-1, -1))
    p = torch.tensor([[0.2, 0.5, 0.3]] * 3).double()
    assert RULES["recursive"](drafted, p) == pytest.approx(0.4 + 0.6 / 1.2)


@pytest.mark.parametrize(("drafted", "expected"), [([0, 1], 1.0), ([1, 0], 1.0), ([0, 0], 0.0)])
def test_kseq_by_hand(drafted, expected):
    """p = 0 1, q = 1/2 1/2: ρ = 3/2, and token 1 passes with 1 / (3/2 · 1/2) > 1."""
    p = torch.tensor([[0.0, 1.0]] * 3).double()
    assert RULES["kseq"](tree(drafted, [[0.5, 0.5]] * 2, (-1, -1)), p) == pytest.approx(expected)


def test_typical_paths_by_hand():
    """Of p = 0.5 0.5 every token is typical, of 0.01 0.99 not token 0 (δ exp(-H) = 0.085): of two paths the longer."""
    p = torch.tensor([[0.5, 0.5], [0.01, 0.99], [0.01, 0.99], [0.5, 0.5], [0.5, 0.5]]).double()
    for second, expected in ((0, 1.0), (1, 2.0)):
        drafted = tree([0, 1, 0, second], [[0.5, 0.5]] * 4, (-1, -1, 0, 1))
        assert RULES["typical"](drafted, p) == expected


@pytest.mark.parametrize("rule", ("recursive", "kseq", "traversal"))
def test_a_draft_of_the_targets_own_law_is_kept_whole(rule):
    """Two chains of two tokens, with and without a shared beginning."""
    for first in (0, 1):
        kept = of_tree([rule], [0, first, 0, 1], (-1, -1, 0, 1), 2, HALVES, HALVES)
        assert kept == pytest.approx([2.0])


def test_a_chain_is_a_tree():
    """Sibling by sibling is token by token, draft by draft; traversal is a block on the average of all drafts."""
    rng = np.random.default_rng(0)
    p, q = (torch.tensor(rng.dirichlet(np.ones(3), 4)) for _ in range(2))
    means = np.zeros(2)
    for drafted in itertools.product(range(3), repeat=3):
        recursive, traversed = of_tree(["recursive", "traversal"], list(drafted), (-1, 0, 1), 0, p, q)
        token, block = (float(rules.RULES[rule](torch.tensor(drafted), p[:3], q[:3])) for rule in ("token", "block"))
        assert recursive == pytest.approx(token, abs=1e-12)
        chance = float(np.prod([q[i, token] for i, token in enumerate(drafted)]))
        means += chance * np.array([traversed, block])
    assert means[0] == pytest.approx(means[1], abs=1e-12)


def two_chains(p, q, rule: str) -> float:
    """The expected tokens of two independent chains of two, over all that can be drawn."""
    total = 0.0
    for a, b, c, d in itertools.product(range(3), repeat=4):  # level by level
        contexts = [(), (a,), (b,), (a, c), (b, d)]
        rows = [torch.tensor(np.stack([law[text] for text in contexts])) for law in (p, q)]
        weight = q[()][a] * q[()][b] * q[(a,)][c] * q[(b,)][d]
        total += weight * of_tree([rule], [a, b, c, d], (-1, -1, 0, 1), 2, *rows)[0] if weight else 0.0
    return total


def one_chain(p, q) -> float:
    """Of one chain of two, token by token: Σ over texts of Π min(p, q)."""
    first = np.minimum(p[()], q[()])
    return float(first.sum() + sum(first[a] * np.minimum(p[(a,)], q[(a,)]).sum() for a in range(3)))


@pytest.mark.parametrize("rule", ("recursive", "kseq", "traversal"))
def test_two_chains_keep_no_fewer_than_one_token_by_token(rule):
    margins = []
    for seed in range(2):
        p, q = laws(3, 2, seed), laws(3, 2, 100 + seed)
        margins.append(two_chains(p, q, rule) - one_chain(p, q))
    assert min(margins) > -1e-12 and max(margins) > 1e-2


def test_the_rules_of_methods():
    by_name = {name: rules_of(load_method(name)) for name in ("mdsd", "mdsd-iid", "rsd", "rsd-constant", "sps")}
    drawn = ["recursive", "traversal", "typical"]
    assert by_name == {"mdsd": drawn, "mdsd-iid": [*RULES], "rsd": [], "rsd-constant": drawn, "sps": []}


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "rule"), [("mdsd", "recursive"), ("mdsd", "traversal"), ("mdsd-iid", "recursive"), ("mdsd-iid", "kseq")]
)
def test_figures_are_what_a_run_accepts(tmp_path, method, rule):
    """Within four standard errors of the accepted tokens of its drafts; chains of sps have a table of their own."""
    save_pair(tmp_path, 8)
    write_suite(tmp_path, TASKS, 6)
    chosen = plan_of(
        tmp_path, ("sps", method), assignments=[f"{method}.rule={rule}"], temperature=1.0, dtype="float64", repeats=3
    )
    assert loop.execute(chosen, tmp_path / "run", always)
    result = rules.compared(StoredRun(tmp_path / "run"), None)
    (row,) = result.trees[result.trees.rule == rule].to_dict("records")
    rounds = rounds_of(tmp_path / "run").query("method == @method and round > 0 and drafted > 0")
    accepted = rounds.accepted.to_numpy(float)
    assert row["drafts"] == len(accepted)
    assert abs(row["value"] - accepted.mean()) < 4 * accepted.std() / np.sqrt(len(accepted)) + 1e-9
    shown = view(result)
    assert [sheet.title for sheet in shown.sheets] == ["", f"Trees of {method}, {row['drafts']} drafts"]
