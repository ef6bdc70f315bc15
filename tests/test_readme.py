"""The README is short, its table is a real one, and its links lead somewhere. Its commands run in test_docs.py."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_it_is_short():
    assert len(README.splitlines()) <= 200


def test_the_table_is_a_real_one():
    """The table at the top has the methods, the scores with their errors and the intervals of one run."""
    table = README.split("<!-- table:begin -->")[1].split("<!-- table:end -->")[0]
    assert "vanilla" in table and "csd" in table
    assert re.search(r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\]", table)
    assert "±" in table


def test_the_tour_has_ten_lines():
    tour = README.split("## Tour")[1].split("```sh\n")[1].split("```")[0]
    assert len(tour.splitlines()) == 10


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", README))
def test_links(link):
    assert (ROOT / link).exists()
