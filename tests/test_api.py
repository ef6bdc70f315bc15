"""The Python API: cheap to import, and the same runs and tables as the commands."""

import subprocess
import sys

import pandas as pd
import pytest

import specbench
from specbench.base.files import write_json


@pytest.fixture(scope="module")
def plan():
    return specbench.resolve_plan(["sps"], suite="smoke", limit=1)


@pytest.fixture(scope="module")
def folder(plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("api") / "run"
    specbench.run_plan(plan, folder)
    return folder


def test_importing_is_cheap():
    heavy = "{'torch', 'pandas', 'numpy', 'pyarrow', 'pydantic', 'rich'}"
    code = f"import sys, specbench; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_names_of_the_api_have_homes():
    assert specbench.UserError.__name__ == "UserError" and specbench.StoredRun.__name__ == "StoredRun"
    with pytest.raises(AttributeError, match="nothing"):
        specbench.nothing  # noqa: B018


def test_run_load_and_compare(plan, folder):
    run = specbench.load_run(folder)
    assert run.finished and run.plan == plan
    assert list(run.samples().query("not warmup").groupby("method").size()) == [len(plan.tasks)] * 2
    table = specbench.compare([folder])
    pd.testing.assert_frame_equal(
        table.reset_index(drop=True), pd.read_parquet(folder / "summary.parquet"), check_dtype=False
    )
    assert set(table.method) == {"vanilla", "sps"}
    alone = specbench.compare([str(folder)], against="sps")
    assert (alone[alone.method == "sps"].speedup_decode == 1).all()


def test_a_folder_goes_on_under_the_same_plan_only(plan, folder):
    (folder / "summary.parquet").unlink()
    assert specbench.run_plan(plan, folder).finished and (folder / "summary.parquet").exists()
    other = specbench.resolve_plan(["sps"], suite="smoke", limit=2)
    with pytest.raises(specbench.UserError, match="other settings"):
        specbench.run_plan(other, folder)


def test_what_is_refused(plan, folder, tmp_path):
    with pytest.raises(specbench.UserError, match="no run folder"):
        specbench.load_run(tmp_path)
    with pytest.raises(specbench.UserError, match="nobody"):
        specbench.compare([folder], against="nobody")
    (tmp_path / "run").mkdir()
    write_json(tmp_path / "run" / "notes.json", {})
    with pytest.raises(specbench.UserError, match="exists"):
        specbench.run_plan(plan, tmp_path / "run")
