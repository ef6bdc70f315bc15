"""The lines that end a run."""

from types import SimpleNamespace

import pandas as pd

from specbench.report.ends import where_memory_went

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
