"""Seconds outside of decoding add up over the calls that a run was decoded in."""

import json
from types import SimpleNamespace

from specbench.measure.setup_times import add_setup_seconds, setup_seconds


def test_what_was_spent_before_a_run_is_not_its_own(tmp_path):
    """A pair that had spent 5 and 2 s before, and 1.5 and 0.25 s more in the run's first call; then as much again."""
    pair = SimpleNamespace(
        runtime=SimpleNamespace(seconds={"capture": 5.0}), prefixes=SimpleNamespace(seconds=2.0), seconds={}
    )
    for total in (1, 2):
        before = setup_seconds(pair)
        pair.runtime.seconds["capture"] += 1.5
        pair.prefixes.seconds += 0.25
        add_setup_seconds(tmp_path, pair, before)
        assert json.loads((tmp_path / "apart.json").read_text()) == {"capture": 1.5 * total, "prefix": 0.25 * total}


def test_a_damaged_file_is_begun_anew_and_other_seconds_stay(tmp_path):
    pair = SimpleNamespace(runtime=SimpleNamespace(seconds={}), prefixes=SimpleNamespace(seconds=3.0), seconds={})
    for text, kept in (("{", {}), ('{"export": 4.0, "prefix": "x"}', {"export": 4.0})):
        (tmp_path / "apart.json").write_text(text)
        add_setup_seconds(tmp_path, pair, {})
        assert json.loads((tmp_path / "apart.json").read_text()) == kept | {"prefix": 3.0}
