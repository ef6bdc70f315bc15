"""Acceptance by rank and the best trees: by hand, against the times of chains, and as commands print them."""

import pytest
from refusals import one_line_error
from screens import call
from synthetic import Rows, rounds

from specbench.analysis.forward_times import Times
from specbench.methods.trees.sequoia import TreePlan
from specbench.results import records
from specbench_extras.tree_sizes.analysis import best_trees, tree_seconds, tree_sizes

R, A, S, U, C = range(len(records.DECISIONS))  # rejected, accepted, rescued, unread, cut
TIMES = "t_draft=0.3,t_target=1"


def trees(row, *each):
    """Rounds of one sample; each has parents and decisions."""
    results = []
    for number, (parents, decisions) in enumerate(each, 1):
        (_, one) = rounds(row, (len(parents), decisions.count(A)))
        results.append(one | {"parents": parents, "decisions": decisions, "round": number})
    return results


def made(folder, name="sequoia", **settings):
    """Two documents of one task.

    First: after the context A U, after its first child R A; then R A, and after the second child R. Second: R R; then
    A U, and what follows was cut. So of rank 1, 2 of 6 places were accepted, of rank 2, 2 of 5.
    """
    first = [([-1, -1, 0, 0], [A, U, R, A]), ([-1, -1, 1], [R, A, R])]
    second = [([-1, -1, 0], [R, R, U]), ([-1, -1, 0], [A, U, C])]
    rows = Rows()
    for doc, each in enumerate((first, second)):
        rows.add("plain", doc, 1.0, [(0, 0)])
        rows.add(name, doc, 1.0, lambda row, each=each: trees(row, *each))
    return rows.run(folder, settings={name: settings})


def test_ranks_by_hand(tmp_path):
    figures = tree_sizes(made(tmp_path / "run"), None, 4, TIMES)
    assert figures.ranks["rank"].tolist() == [1, 2] and figures.ranks.places.tolist() == [6, 5]
    assert figures.ranks["value"].tolist() == pytest.approx([2 / 6, 2 / 5]) and figures.rates == [0.3333, 0.4]
    assert (figures.method, figures.documents) == ("sequoia", 2)


def test_seconds_by_hand_and_of_a_chain():
    """Two levels, the second drafted by one forward over two tokens; then the target reads five tokens."""
    times = Times(0.3, 1.0, 0.1, draft_start=0.05, overhead=0.2, draft_overhead=0.01, draft_width_slope=0.02)
    assert tree_seconds(times, [[2], [1, 1], [0, 0]]) == pytest.approx(1 + 0.4 + 0.2 + 2 * 0.31 + 0.05 + 0.02)
    assert tree_seconds(times, [[2], [2, 0], [0, 0]]) == pytest.approx(1 + 0.4 + 0.2 + 2 * 0.31 + 0.05)
    assert tree_seconds(times, [[1], [1], [1], [0]]) == pytest.approx(times.round(3))


def test_the_best_tree_depends_on_what_drafts_cost():
    """Four nodes at rates .6 .3 .2 .1: one level has 1 + 1.2 tokens; without a bound 1 + .6 + .36 + .3 + .216."""
    plan = TreePlan((0.6, 0.3, 0.2, 0.1), 9, 16)
    dear, cheap = (best_trees(plan, Times(t_draft, 1.0)).set_index("nodes") for t_draft in (100.0, 1e-6))
    assert dear.index.tolist() == cheap.index.tolist() == [2, 4, 8]
    assert dear.levels[4] == 1 and dear.tokens[4] == pytest.approx(2.2) and dear.seconds[4] == pytest.approx(101)
    assert cheap.levels[4] == 3 and cheap.tokens[4] == pytest.approx(1 + 0.6 + 0.36 + 0.3 + 0.216)
    assert cheap.speedup[4] == pytest.approx(cheap.tokens[4] / cheap.seconds[4])


def test_a_command_prints_settings_and_refuses_other_trees(tmp_path):
    run = made(tmp_path / "run").folder
    shown = call("analyze", "tree", run, "--forward-times", TIMES, "--nodes", 8)
    assert shown.exit_code == 0 and "acceptance=[0.3333,0.4]" in "".join(shown.stdout.split())
    assert max(map(len, shown.stdout.splitlines())) <= 80
    with one_line_error("no method of", "fixed shape", "rsd-constant --split validation"):
        tree_sizes(made(tmp_path / "beam", "rsd", search="beam"), None, 4, TIMES)
    with one_line_error("plain of", "fixed shape"):
        tree_sizes(made(tmp_path / "other"), "plain", 4, TIMES)
    with one_line_error("has no method gone"):
        tree_sizes(made(tmp_path / "third"), "gone", 4, TIMES)
