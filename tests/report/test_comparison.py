"""The lines that end a run."""

from types import SimpleNamespace

import pandas as pd

from specbench.measure.work import add_seconds
from specbench.report.comparison import where_memory_went, where_time_went

GB = 10**9


def run(**manifest) -> SimpleNamespace:
    models = {"target": {"forward": {"weight_bytes": 3 * GB}}, "draft": {"forward": {"weight_bytes": 27_000_000}}}
    return SimpleNamespace(manifest={"models": models} | manifest)


def test_memory_by_what_it_is():
    summary = pd.DataFrame({"peak_memory": [5.5 * GB, 6 * GB]})
    assert where_memory_went(run(memory_loaded=5 * GB), summary) == (
        "memory:  at most 6.0 GB: 5.0 GB when all was loaded (target 3.0 GB, draft 27 MB, libraries), the rest for "
        "caches and what methods keep"
    )


def test_runs_that_kept_no_memory_have_no_line():
    assert where_memory_went(run(), pd.DataFrame({"peak_memory": [GB]})) == ""
    assert where_memory_went(run(memory_loaded=GB), pd.DataFrame({"peak_memory": [float("nan")]})) == ""
    assert where_memory_went(run(memory_loaded=GB, models=None), pd.DataFrame({"peak_memory": [GB]})) == ""


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
