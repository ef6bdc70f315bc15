"""What `specbench list architectures` says is what tiny models of each architecture do."""

import architectures as made
import pytest
import tiny_architectures as tiny
from screens import output

from specbench.engine.models.architectures import architectures

ROWS = {row["architecture"]: row for row in architectures()}
SHORT = ("gemma3_text", "gpt_oss", "mpt", "lfm2", "xlstm")  # windows, experts and sinks, chains only, a state, refused


@pytest.mark.parametrize(
    "kind", [each if each in SHORT else pytest.param(each, marks=pytest.mark.long) for each in ROWS]
)
def test_the_table_says_what_happens(kind):
    expected = {name: cell for name, cell in ROWS[kind].items() if cell}
    assert {name: cell for name, cell in made.row(kind).items() if cell} == expected


def test_no_text_differs_and_enough_prove_something():
    assert ROWS.keys() == tiny.FIELDS.keys()
    assert not [row for row in ROWS.values() if "differs" in row.values() or "ERROR" in row["vanilla"]]
    lively = [row for row in ROWS.values() if row["vanilla"].isdecimal() and int(row["vanilla"]) >= made.FEWEST]
    assert sum(row["sps"] == row["rsd"] == row["pld"] == row["eagle3"] == "exact" for row in lively) >= 30
    assert sum(row["swift"] == "exact" for row in lively) >= 30


def test_the_list_says_it_in_lines():
    text = output("list", "architectures")
    assert max(map(len, text.splitlines())) <= 80
    for kind in SHORT:
        assert f"\n{kind} " in text
