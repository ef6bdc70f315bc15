"""A place with tiny models, and plans of runs there."""

from pathlib import Path

import pytest
from tiny_runs import SETTINGS, TASKS, plan_of, save_pair, write_suite


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a tiny target and draft that agree now and then, and a suite of two bundled tasks."""
    folder = tmp_path_factory.mktemp("pair")
    save_pair(folder, 8)
    write_suite(folder, TASKS, 2)
    return folder


@pytest.fixture(scope="module")
def make_plan(place):
    def make(methods=("sps", "csd"), **options):
        assignments = [setting for setting in SETTINGS if setting.split(".")[0] in methods]
        return plan_of(place, methods, **({"assignments": assignments} | options))

    return make
