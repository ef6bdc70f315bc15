"""Seconds of a run add up over the calls that it was decoded in, and a line says where they went."""

import json
from types import SimpleNamespace

from specbench.measure.spent import Spent, add_seconds, setup_seconds, since, where_time_went


def test_what_was_spent_before_a_run_is_not_its_own(tmp_path):
    """A pair that had spent 5 and 2 s before, and 1.5 and 0.25 s more in the run's first call; then as much again."""
    pair = SimpleNamespace(
        runtime=SimpleNamespace(seconds={"capture": 5.0}), prefixes=SimpleNamespace(seconds=2.0), seconds={}
    )
    for total in (1, 2):
        before = setup_seconds(pair)
        pair.runtime.seconds["capture"] += 1.5
        pair.prefixes.seconds += 0.25
        add_seconds(tmp_path, since(pair, before))
        assert json.loads((tmp_path / "apart.json").read_text()) == {"capture": 1.5 * total, "prefix": 0.25 * total}


def test_a_damaged_file_is_begun_again_and_other_seconds_stay(tmp_path):
    for text, kept in (("{", {}), ('{"export": 4.0, "prefix": "x"}', {"export": 4.0})):
        (tmp_path / "apart.json").write_text(text)
        add_seconds(tmp_path, {"prefix": 3.0})
        assert json.loads((tmp_path / "apart.json").read_text()) == kept | {"prefix": 3.0}


def test_the_prefill_of_texts_is_told_from_their_decoding():
    """Ten seconds for two texts, of which one is a failed one: three were prefill."""
    spent = Spent()
    spent.add_texts([({"prefill_seconds": 3.0}, []), ({"finish": "error"}, [])], 10.0)
    assert spent == {"prefill": 3.0, "decoding": 7.0}


def test_the_line_of_a_run_of_two_calls(tmp_path):
    """100 s and 100 s; loading 20, warm-up 10, prefill 50, decoding 100, scoring 10, so that 10 are left."""
    add_seconds(tmp_path, {"loading": 20.0, "warm-up": 10.0, "prefill": 50.0, "decoding": 40.0, "total": 100.0})
    add_seconds(tmp_path, {"decoding": 60.0, "scoring": 10.0, "export": 30.0, "total": 100.0})
    assert where_time_went(tmp_path) == (
        "time:    3 min: loading 10%, warm-up 5%, prefill 25%, decoding 50%, scoring 5%, the rest 5%"
    )


def test_a_run_that_kept_no_times_has_no_line(tmp_path):
    assert where_time_went(tmp_path) == ""
    add_seconds(tmp_path, {"export": 4.0})
    assert where_time_went(tmp_path) == ""
