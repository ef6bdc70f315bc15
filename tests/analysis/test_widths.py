"""Forwards by width: what is called uneven, in a curve and in a run's records."""

import pytest
from synthetic import SINGLE, Rows

from specbench.analysis import compare, pooled
from specbench.analysis.time_warnings import uneven_widths
from specbench.analysis.widths import steps, uneven
from specbench.report import notes

WIDTHS = (1, 2, 3, 4, 5, 8, 16)


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        ((12, 12, 12, 12, 13, 14, 17), []),
        ((10, 13, 16.9, 20, 20, 20, 26), []),  # 1.3 times, each
        ((31, 16, 17, 17, 19, 21, 29), [(1, 2), (8, 16)]),
        ((42, 75, 92, 90, 61, 66, 78), [(1, 2), (4, 5)]),
        ((10, 10, 10, 10, 10, 13.1, 13.1), [(5, 8)]),
    ],
)
def test_steps_between_neighbours(milliseconds, expected):
    found = list(steps(dict(zip(WIDTHS, (ms / 1000 for ms in milliseconds), strict=True))))
    assert [(narrow, wide) for narrow, wide, _ in found] == expected


def test_widths_that_are_far_apart_may_cost_more_but_not_less():
    assert not list(steps({1: 0.01, 6: 0.02})) and list(steps({1: 0.02, 6: 0.01})) == [(1, 6, 0.5)]


def test_words():
    assert uneven("target", {1: 0.0311, 2: 0.0162, 4: 0.0163}) == (
        "a forward of the target takes 31.1 ms for 1 token and 16.2 ms for 2: wider forwards cost less, so speedups "
        "hold what narrow ones lose"
    )
    assert uneven("draft", {2: 0.1, 4: 0.2}) == (
        "a forward of the draft takes 100 ms for 2 tokens and 200 ms for 4: wider forwards cost more"
    )
    assert uneven("target", {1: 0.01, 2: 0.011}) == uneven("target", {}) == ""


@pytest.mark.parametrize(("plain", "wide", "told"), [(0.03, 0.016, True), (0.03, 0.024, False)])
def test_a_run_tells_it_of_its_own_forwards(tmp_path, plain, wide, told):
    """Of methods whose target reads the draft and the token before; `lookahead` reads more."""
    rows = Rows()
    for doc in range(6):
        rows.add("vanilla", doc, shapes=SINGLE, seconds=(plain, 0.0))
        rows.add("sps", doc, shapes=((3, 1),) * 4, seconds=(wide, 0.001))
        rows.add("lookahead", doc, shapes=((2, 1),) * 4, seconds=(0.9, 0.0))
    run = rows.run(tmp_path / "a", baseline="vanilla")
    lines = list(uneven_widths(run))
    expected = (
        f"a forward of the target takes 30 ms for 1 token and {1000 * wide:.3g} ms for 4: wider forwards cost less"
    )
    assert bool(lines) == told and all(line.startswith(expected) for line in lines)
    measured = pooled.measured([run])
    assert any("for 1 token" in line for line in notes.warnings([run], compare.summary(measured), measured)) == told
    batch = rows.run(tmp_path / "b", baseline="vanilla", batch=4)
    assert not list(uneven_widths(batch))  # whose times are shares
