"""Seconds of a run add up over the calls that it was decoded in."""

import json
from types import SimpleNamespace

from specbench.measure.work import Spent, add_seconds, setup_seconds, since


def test_what_was_spent_before_a_run_is_not_its_own(tmp_path):
    """A pair that had spent 5 and 2 s before, and 1.5 and 0.25 s more in the run's first call; then as much again."""
    pair = SimpleNamespace(
        runtime=SimpleNamespace(seconds={"capture": 5.0}), prefixes=SimpleNamespace(seconds=2.0), seconds={}, models={}
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
