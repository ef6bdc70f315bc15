"""The README is short, its table is a real one, and its links lead somewhere. Its commands run in test_docs.py."""

import re
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


def test_the_tour_has_ten_lines():
    tour = README.split("## Tour")[1].split("```sh\n")[1].split("```")[0]
    assert len(tour.splitlines()) == 10


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", README))
def test_links(link):
    assert (ROOT / link).exists()
