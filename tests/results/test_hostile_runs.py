"""Run folders from anywhere: manifests and tables that no run writes are refused in one line."""

import json

import fuzz_run
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import one_line_error
from screens import call
from synthetic import change_manifest

from specbench.config import UserError
from specbench.methods import settings_of
from specbench.results.stored import StoredRun


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few")
    fuzz_run.make(folder, fuzz_run.few())
    return folder


@pytest.fixture
def run(few):
    kept = {path: path.read_bytes() for path in (few / "run").iterdir()}
    yield few / "run"
    for path, data in kept.items():
        path.write_bytes(data)


def rewritten(run, name: str, **changes) -> None:
    """A table with other values in the last row that drafts."""
    path = run / f"{name}.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    next(row for row in reversed(rows) if row.get("drafted", 1)).update(changes)
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("rounds", {"drafted": 2**31 - 1, "levels": 2**31 - 1}, "different lengths|drafted is"),
        ("rounds", {"seconds": -1.0}, "seconds is -1"),
        ("rounds", {"seconds": float("inf")}, "seconds is inf"),
        ("rounds", {"accepted": 3, "levels": 2}, "accepted is more than levels"),
        ("rounds", {"decisions": [9, 9, 9]}, "decisions is 9"),
        ("rounds", {"draft_tokens": [1]}, "different lengths"),
        ("rounds", {"parents": [5, 0, 1]}, "follows a later one"),
        ("rounds", {"committed": None}, "not committed"),
        ("rounds", {"method": "unknown"}, "no method of this run"),
        ("rounds", {"task": "unknown"}, "no task of this run"),
        ("rounds", {"round": 1}, "twice"),
        ("rounds", {"doc_id": 77}, "no such sample"),
        ("rounds", {"task": None}, "rows without task"),
        ("samples", {"doc_id": 0, "task": fuzz_run.TASKS[0]}, "twice"),
        ("samples", {"tokens": [-5]}, "tokens is -5"),
        ("samples", {"tokens": [None]}, "tokens lacks values"),
        ("samples", {"finish": "perhaps"}, "finish is 'perhaps'"),
        ("scores", {"method": "\x1b[2J"}, "no method"),
    ],
)
def test_rows_that_no_run_writes(run, name, changes, words):
    rewritten(run, name, **changes)
    stored = StoredRun(run)
    with pytest.raises(UserError, match=words):
        stored.rounds() if name == "rounds" else stored.scores()


@pytest.mark.parametrize(
    "change",
    [
        {"environment": {"device": ["cpu"]}},
        {"environment": 1},
        {"models": {"target": {"dtype": None}}},
        {"requests": [["a", "b", "c", "d"]]},
        {"requests": [["a", 1]]},
        {"headline": {"a": None}},
        {"ceilings": {"bandwidth": [], "products": []}},
        {"runtime": {"name": ["eager"]}},
        {"inputs": {"csd": 1}},
        {"schema": "6"},
        {"schema": 10**9},
        {"tokenizer_hash": 5},
        {"generation": {"a": {"until": 3}}},
        {"plan": []},
    ],
)
def test_manifests_of_other_types(run, change):
    change_manifest(run, **change)
    with pytest.raises(UserError):
        _ = StoredRun(run).plan


@pytest.mark.parametrize(
    ("change", "words"),
    [({"baseline": "other"}, "no method 'other'"), ({"baselines": {"csd": "other"}}, "no method 'other'")],
)
def test_plans_that_name_what_they_have_not(run, change, words):
    plan = json.loads((run / "manifest.json").read_text())["plan"]
    change_manifest(run, plan=plan | change)
    with pytest.raises(UserError, match=words):
        _ = StoredRun(run).plan
    change_manifest(run, plan=plan | {"methods": plan["methods"] * 2})
    with pytest.raises(UserError, match="two methods have one name"):
        _ = StoredRun(run).plan


@pytest.mark.parametrize("what", ["methods", "tasks", "pair"])
def test_a_name_of_a_megabyte_is_refused(run, what):
    plan = json.loads((run / "manifest.json").read_text())["plan"]
    if what == "pair":
        plan["pair"]["name"] = "x" * 2**20
    else:
        plan[what][0]["name" if what == "methods" else "task"] = "x" * 2**20
    change_manifest(run, plan=plan)
    with one_line_error("has 1048576 characters"):
        _ = StoredRun(run).plan


@pytest.mark.parametrize("command", ["show", "report", "compare", "plan", "plot depth", "run --resume"])
def test_a_folder_that_links_to_itself_is_one_line(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    outcome = call(*command.split(), "loop")
    assert outcome.exit_code == 2 and outcome.stderr.count("\n") == 1 and "loop" in outcome.stderr


def test_a_task_without_its_metric(run):
    change_manifest(run, headline={fuzz_run.TASKS[0]: "exact_match,none"})
    with pytest.raises(UserError, match=f"metric of {fuzz_run.TASKS[1]}"):
        StoredRun(run).headline()


def test_no_text_of_a_stored_run_is_code(run):
    """A name of a method that is none is no module to import."""
    plan = json.loads((run / "manifest.json").read_text())["plan"]
    plan["methods"][1]["method"] = "os"
    change_manifest(run, plan=plan)
    stored = StoredRun(run)
    with pytest.raises(UserError, match="no method 'os'"):
        settings_of(stored.plan.methods[1], stored.folder)


def test_errors_reach_the_terminal_as_one_line(run):
    (run / "manifest.json").write_bytes(b"\xff\x00" * 10)
    outcome = call("show", str(run))
    assert outcome.exit_code == 2 and outcome.stderr.count("\n") == 1 and "manifest.json is damaged" in outcome.stderr
