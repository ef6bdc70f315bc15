"""Cells of the papers' tables: which of our methods have the labels of the paper."""

from specbench import config
from specbench.config import Setting, load_method
from specbench.papers.cells import labels_of


def spec_of(name, **settings):
    spec = load_method(name)
    return config.override(spec, {key: Setting(value=value, source="test") for key, value in settings.items()})


def test_only_methods_with_the_papers_settings_have_its_labels():
    specs = [
        spec_of("vanilla"),
        spec_of("sps", gamma=25).model_copy(update={"name": "sps[gamma=25]"}),
        spec_of("sps", gamma=4),
        spec_of("cospec", arbiter="always"),
        spec_of("cospec", arbitrator="mine").model_copy(update={"name": "mine"}),
        spec_of("cospec", threshold=0.5).model_copy(update={"name": "lower"}),
        spec_of("eagle3"),
    ]
    expected = {"vanilla": "Target only", "mine": "CoSpec"}
    assert labels_of(specs, "pocket", 9) == expected
    assert labels_of(specs, "pocket", 11) == {**expected, "sps[gamma=25]": "SpS", "eagle3": "EAGLE-3"}
