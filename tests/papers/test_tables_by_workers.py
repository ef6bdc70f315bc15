"""Runs of the papers' tables, made by workers: which folders go on, and that the figures are those of one process."""

import json

import pandas as pd
import pytest
import yaml
from papers_made import publish
from screens import call, output, refusal

from specbench.measure.staffing import Staffing
from specbench.papers import missing_runs, published, reproduce

PAPER = {
    "paper": "paper",
    "title": "On guessing",
    "pairs": {"Big/Small": None},
    "tasks": {"Sums": "gsm8k", "Code": "humaneval"},
    "methods": {"Plain": {"method": "vanilla"}, "Spec": {"method": "sps", "settings": {"gamma": 4}}},
    "metrics": {"Acc": "accuracy", "Spd": "speedup_decode", "AR": "acceptance_rate"},
    "baseline": "vanilla",
    "tables": {1: {"title": "speed", "lost": []}},
    "claims": [{"table": 1, "text": "Spec is faster", "metric": "speedup_decode", "higher": "sps", "lower": "vanilla"}],
}
CELLS = """paper,table,pair,task,temperature,method,setting,metric,value,unit
paper,1,Big/Small,Sums,0,Plain,,Acc,50.0,%
paper,1,Big/Small,Sums,0,Spec,,AR,61.5,%
paper,1,Big/Small,Sums,0,Spec,,Spd,2.10,x
paper,1,Big/Small,Code,0,Spec,,AR,60.5,%
"""


@pytest.fixture(autouse=True)
def suite(tmp_path, monkeypatch):
    """A paper with one table, and a suite of few short texts."""
    publish(monkeypatch, tmp_path, PAPER, CELLS)
    monkeypatch.chdir(tmp_path)
    lines = [{"task": task, "max_new_tokens": 12} for task in ("pocket_gsm8k", "pocket_humaneval")]
    path = tmp_path / "few.yaml"
    path.write_text(yaml.safe_dump({"description": "few", "limit": 2, "tasks": lines}))
    return str(path)


@pytest.fixture
def pools(monkeypatch):
    """Nothing is decoded: what pools were asked for, the first of which the user stops after it has begun."""
    asked = []

    def run(plan, out, resume, staffing):
        asked.append((out, resume, staffing))
        folder = out or resume
        manifest = {key: {} for key in ("models", "inputs", "generation", "headline")}
        manifest |= {"requests": [], "environment": {"device": "cpu"}, "schema": reproduce.records.VERSION}
        shard = folder / "shards" / "2.3"
        if out:
            shard.mkdir(parents=True)
            facts = {"plan": plan.model_dump(mode="json"), "shard": {"number": 2, "of": 4, "first": 1, "stop": 2}}
            (shard / "manifest.json").write_text(json.dumps(manifest | facts))
            return None
        (folder / "manifest.json").write_text(
            json.dumps(manifest | {"plan": json.loads((shard / "manifest.json").read_text())["plan"]})
        )
        for name in ("samples", "rounds", "scores"):
            (folder / f"{name}.parquet").touch()
        return folder

    def never(*_):
        raise AssertionError("the driver loads nothing")

    monkeypatch.setattr(missing_runs.pool, "run", run)
    monkeypatch.setattr(missing_runs.compare, "write_summary", lambda folder: None)
    monkeypatch.setattr(missing_runs.prepare, "load_models", never)
    monkeypatch.setattr(missing_runs.time, "strftime", lambda _: f"time-{len(asked)}")
    return asked


def measure(suite, staffing):
    return missing_runs.measure(published.papers(), "pocket", suite, None, staffing, untimed=True)


@pytest.mark.parametrize("later", [Staffing(3), None])
def test_a_run_that_workers_began_goes_on_with_any_number_of_them(suite, pools, later):
    assert measure(suite, Staffing(2)) is None
    ((out, resume, staffing),) = pools
    assert (resume, staffing) == (None, Staffing(2)) and out.parent == missing_runs.STORE
    (run,) = measure(suite, later)
    assert pools[1:] == [(None, out, later or Staffing(1))] and run.folder == out
    assert [one.folder for one in measure(suite, later)] == [out] and len(pools) == 2, "it is whole"


def test_a_target_over_several_gpus_is_another_run(suite, pools):
    measure(suite, Staffing(2))
    measure(suite, Staffing(2, gpus=4))
    assert [resume for _, resume, _ in pools] == [None, None]


def test_timed_runs_by_workers_of_one_device_are_refused(suite):
    assert "add --untimed to leave times out" in refusal(
        *("tables", "--paper", "paper", "--suite", suite, "--device", "cpu", "--workers", 2)
    )


@pytest.mark.long
def test_the_tables_of_workers_are_those_of_one_process(suite, tmp_path):
    words = ["tables", "--paper", "paper", "--suite", suite, "--device", "cpu", "--untimed", "--out"]
    output(*words, tmp_path / "alone")
    (tmp_path / "runs").rename(tmp_path / "runs-of-one")
    said = output(*words, tmp_path / "tables", "--workers", 2)
    assert "by 2 workers" in said
    (run,) = (tmp_path / "runs" / "tables").iterdir()
    assert len(json.loads((run / "manifest.json").read_text())["joined"]) > 1
    for name in ("paper-table1.md", "paper-table1.tex", "checks.md"):
        one, other = ((tmp_path / out / name).read_text() for out in ("alone", "tables"))
        assert one.replace(next((tmp_path / "runs-of-one" / "tables").iterdir()).name, run.name) == other
    one, other = (pd.read_parquet(tmp_path / out / "documents.parquet") for out in ("alone", "tables"))
    pd.testing.assert_frame_equal(one.drop(columns="run"), other.drop(columns="run"))
    assert "61.5" in (tmp_path / "tables" / "paper-table1.md").read_text()
    assert call(*words, tmp_path / "again").exit_code == 0, "nothing is left to run"
