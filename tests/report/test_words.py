"""What is said of a comparison in sentences: verdicts of speed and accuracy, and their correction for many of them."""

import math

import pandas as pd
import pytest

from specbench.report.words import sentences


def verdict(**changes):
    values = {"pair": "p", "sampling": "greedy", "task": "one", "method": "sps", "baseline": "plain"}
    values |= {
        "documents": 8,
        "compared": 8,
        "speedup_decode": 1.5,
        "speedup_decode_low": 1.4,
        "speedup_decode_high": 1.6,
    }
    values |= {"speedup_decode_p": 0.001, "imported": False, "accuracy_test": "mcnemar"}
    values |= dict.fromkeys(("speedup_e2e", "speedup_e2e_low", "speedup_e2e_high", "speedup_e2e_p"), math.nan)
    values |= {"accuracy_delta": 0.0, "accuracy_delta_low": -0.05, "accuracy_delta_high": 0.05, "accuracy_p": 1.0}
    return values | {"cut": 0.0} | changes


ENDS = {"speedup_e2e": 1.2, "speedup_e2e_low": 1.1, "speedup_e2e_high": 1.3, "speedup_e2e_p": 0.01}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "sps: faster than plain on one (1.50 ×); the same accuracy on one."),
        ({"speedup_decode_p": 0.06}, "sps: no clear difference in speed from plain on one (1.50 ×); the same accuracy"),
        ({"speedup_decode": 0.8}, "sps: slower than plain on"),
        ({"accuracy_delta_low": -0.11}, "too few to tell its accuracy on one."),
        ({"accuracy_delta_high": 0.11}, "too few to tell its accuracy on one."),
        ({"accuracy_test": "permutation"}, "the same score on one."),
        ({"imported": True}, "1.50 times the speed of plain, if the machine was the same and as idle for both;"),
        ({"accuracy_delta": -0.1, "accuracy_p": 0.004}, "accuracy lower on one (−10.0 points, p = 0.004)"),
        ({"accuracy_delta": 0.1, "accuracy_p": 0.00004}, "accuracy higher on one (+10.0 points, p < 0.001)"),
        ({"accuracy_delta": -0.02, "accuracy_p": 0.4}, "may be chance on one (−2.0 points, p = 0.40)"),
        ({"accuracy_delta": math.nan, "accuracy_p": math.nan}, "its accuracy is not compared"),
        ({"speedup_decode_low": math.nan}, "its speed is not known"),
        ({"compared": 7}, "sps: too few documents to tell its speed; the same accuracy on one."),
        ({"speedup_decode_low": math.nan} | ENDS, "sps: faster than plain end to end on one (1.20 ×)"),
    ],
)
def test_sentences(changes, expected):
    assert expected in sentences(pd.DataFrame([verdict(**changes)]))[0]


def test_no_verdict_of_speed_where_a_speedup_exceeds_tau():
    """It is no comparison that others are corrected for, either."""
    rows = [verdict(task=t, speedup_decode=s, speedup_decode_p=0.03, tau=1.67) for t, s in (("a", 2.18), ("b", 1.4))]
    held = "no verdict on its speed on a (2.18 × is more than its τ of 1.67 can give)"
    why = {0: "2.18 × is more than its τ of 1.67 can give"}
    alone = sentences(pd.DataFrame(rows[:1]), why)
    assert alone == [f"sps: {held}; the same accuracy on a."]
    both = sentences(pd.DataFrame(rows), why)
    assert both[0].startswith(f"sps: faster than plain on b (1.40 ×), {held};")
    assert "1 of speed" in both[1]
    assert "no clear difference in speed from plain on a and b" in sentences(pd.DataFrame(rows))[0]


def test_sentences_correct_p_for_the_number_of_comparisons():
    """0.03 alone is real; among three comparisons Holm makes it 0.09."""
    rows = [verdict(task=t, accuracy_delta=-0.1, accuracy_p=p) for t, p in (("a", 0.03), ("b", 0.9), ("c", 0.8))]
    alone = sentences(pd.DataFrame(rows[:1]))
    assert "accuracy lower" in alone[0]
    lines = sentences(pd.DataFrame(rows))
    assert "accuracy lower" not in lines[0] and "p = 0.090" in lines[0]
    assert (
        lines[1] == "Verdicts and p values have Holm's correction for these comparisons: 3 of speed and 3 of accuracy."
    )


def test_speeds_are_corrected_for_the_number_of_comparisons():
    """As above; a task with too few documents is no comparison."""
    rows = [verdict(task=t, speedup_decode_p=p) for t, p in (("a", 0.03), ("b", 0.9), ("c", 0.8))]
    few = [verdict(task="d", speedup_decode_p=0.01, compared=7)]
    assert sentences(pd.DataFrame(rows[:1] + few))[0].startswith("sps: faster than plain on a (1.50 ×);")
    assert sentences(pd.DataFrame(rows + few))[0].startswith(
        "sps: no clear difference in speed from plain on all 3 tasks"
    )


def test_answers_that_the_limit_cut_are_part_of_the_verdict():
    """All of one task's answers and a tenth of another's; 9 % of a third task's are not worth a line."""
    rows = [verdict(task=task, cut=cut) for task, cut in (("a", 1.0), ("b", 0.1), ("c", 0.09))]
    assert sentences(pd.DataFrame(rows))[-1] == (
        "Answers are cut by the limit of new tokens, up to 100% of them on a, 10% of them on b: raise "
        "--max-new-tokens, or read scores so."
    )
    assert not any("cut" in line for line in sentences(pd.DataFrame(rows[2:])))
