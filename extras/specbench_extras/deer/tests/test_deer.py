"""deer: settings that cannot be."""

import pytest
from builders_engine import build
from refusals import one_line_error


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block": -1}, "deer: block"),
        ({"head": "gone"}, "there is no head gone; train one: specbench train --method deer"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "deer", **changes)
