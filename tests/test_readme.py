"""The README is short, its table is a real one, and its links lead somewhere. Its commands run in test_docs.py."""

import re
from math import ceil, floor
from pathlib import Path

import pandas as pd
import pytest

from specbench.base.scores import wilson
from specbench.report.columns import score

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_it_is_short():
    assert len(README.splitlines()) <= 200


def test_the_table_is_a_real_one():
    """The table at the top has the methods, and the scores and speedups of one run with their intervals.

    Scores are of 150 documents a task, so the table's own counts of right ones give the intervals.
    """
    table = README.split("<!-- table:begin -->")[1].split("<!-- table:end -->")[0]
    assert "vanilla" in table and "csd" in table
    assert re.search(r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\]", table)
    of_tasks = re.findall(r"\| pocket_\w+ \| \w+ \| ([\d.]+ \[\d+, \d+\]) \|", table)
    assert len(of_tasks) == 4
    for cell in of_tasks:
        bounds = wilson(round(float(cell.split()[0]) * 1.5) / 150, 150)
        values = {"accuracy": bounds.value, "accuracy_low": bounds.low, "accuracy_high": bounds.high}
        assert score(pd.Series(values)) == cell


@pytest.mark.parametrize(("part", "file", "count"), [("real", "everyday-smollm2", 12), ("table", "math-csd-static", 6)])
def test_a_table_is_that_of_its_stored_run(part, file, count):
    """Every score, rate, τ, speed and interval of `make real` and `make run`, written again from results/."""
    stored = pd.read_csv(ROOT / "results" / "reference" / f"{file}.csv").set_index(["task", "method"])
    table = README.split(f"<!-- {part}:begin -->")[1].split(f"<!-- {part}:end -->")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    assert len(rows) - 2 == len(stored) == count
    for cells in rows[2:]:
        row = dict(zip(rows[0], cells, strict=True))
        kept = stored.loc[row["task"], row["method"]]
        low, high = 100 * kept.accuracy_low, 100 * kept.accuracy_high
        assert row["score [95 %]"] == f"{100 * kept.accuracy:.1f} [{floor(low)}, {ceil(high)}]"
        assert row["τ"] == f"{kept.tau:.2f}" and row["tok/s"] == f"{kept.tokens_per_s:.0f}"
        assert row["accept"] == ("-" if row["method"] == "vanilla" else f"{100 * kept.acceptance_rate:.1f}")
        low, high = kept.speedup_decode_low, kept.speedup_decode_high
        speedup = f"{kept.speedup_decode:.2f} [{low:.2f}, {high:.2f}]" + "=" * bool(low <= 1 <= high)
        assert row["speedup [95 %]"] == ("1 (base)" if row["method"] == "vanilla" else speedup)


def test_the_tour_has_ten_lines():
    tour = README.split("## Tour")[1].split("```sh\n")[1].split("```")[0]
    assert len(tour.splitlines()) == 10


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", README))
def test_links(link):
    assert (ROOT / link).exists()
