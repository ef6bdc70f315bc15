"""A memory that was made from the documents of a run is not tested on them without a word."""

import pytest
import yaml
from screens import call

from specbench.config import UserError
from specbench.measure import loop
from specbench.methods.lossy.csd_memory import read_counts
from specbench.permissions import permitted
from specbench.plan import resolve_plan
from specbench.report.comparison import compare
from specbench.results.load_folder import opened
from specbench.results.stored import StoredRun
from specbench.training import csd


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A suite of two short documents, a run of sps on them, and the memory that this run makes."""
    folder = tmp_path_factory.mktemp("leaks")
    lines = [{"task": "pocket_gsm8k", "max_new_tokens": 24}]
    (folder / "two.yaml").write_text(yaml.safe_dump({"description": "two", "limit": 2, "tasks": lines}))
    assert loop.execute(plan(folder, "sps"), folder / "run", lambda progress: True)
    csd.merge([folder / "run"], None, folder / "memory.parquet")
    return folder


def plan(folder, method, *assignments, **options):
    return resolve_plan([method], str(folder / "two.yaml"), "pocket", assignments, **options)


def test_a_merged_memory_names_its_documents(place):
    expected = {request[3] for request in StoredRun(place / "run").manifest["requests"]}
    assert len(expected) == 2
    assert read_counts(place / "memory.parquet").doc_hashes == expected
    csd.merge([place / "memory.parquet"], None, place / "again.parquet")
    assert read_counts(place / "again.parquet").doc_hashes == expected


def test_the_same_documents_are_refused_or_marked(place, capsys):
    memory = f"csd.memory={place / 'memory.parquet'}"
    with pytest.raises(UserError, match=r"csd would be tested on 2 documents.*\(of 2\).*--allow-leak") as error:
        loop.execute(plan(place, "csd", memory), place / "refused", lambda progress: True)
    assert "\n" not in str(error.value)
    with permitted(allow_leak=True):
        assert loop.execute(plan(place, "csd", memory), place / "allowed", lambda progress: True)
    assert StoredRun(place / "allowed").manifest["leaks"] == {"csd": 2}
    compare([place / "allowed"], "md")
    assert "LEAK: the memory of csd was made from 2 of the documents" in capsys.readouterr().out


def test_other_documents_are_no_leak(place):
    """The calibration documents of the same task: their memory has hashes, but none of a test document."""
    where = ("cpu", "auto", "auto")  # device, type and runtime
    csd.calibrate(
        str(place / "two.yaml"), None, "pocket", "csd", [], 2, 0.0, 0, *where, None, place / "calibrated.parquet"
    )
    assert len(read_counts(place / "calibrated.parquet").doc_hashes) == 2
    memory = f"csd.memory={place / 'calibrated.parquet'}"
    assert loop.execute(plan(place, "csd", memory, limit=1), place / "calibrated", lambda progress: True)
    assert "leaks" not in StoredRun(place / "calibrated").manifest


def test_a_server_is_refused_or_marked_too(place, tmp_path):
    words = ["load", "--pair", "pocket", "--suite", place / "two.yaml", "--device", "cpu", "--runtime", "static"]
    words += ["--method", "csd", "--set", f"csd.memory={place / 'memory.parquet'}"]
    words += ["--rate", "inf", "--rows", 4, "--requests", 8, "--limit", 2, "--out", tmp_path / "load"]
    refused = call(*words)
    assert refused.exit_code == 2
    assert "csd would be tested on 2 documents that its inputs were made from (of 2)" in refused.stderr.splitlines()[-1]
    allowed = call(*words, "--allow-leak")
    assert allowed.exit_code == 0, allowed.output
    assert "LEAK: the memory of csd was made from 2 of the documents that it serves" in " ".join(allowed.stdout.split())
    with opened(tmp_path / "load") as folder:
        assert folder.manifest["leaks"] == {"csd": 2}
