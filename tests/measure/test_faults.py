"""A minute's part of `make fault-test`: each fault once or twice, done to the command itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

MAIN = Path(__file__).parents[1] / "faults" / "main.py"
KINDS = ("kill", "power", "space", "stop", "failing", "logits", "folders", "shards", "workers", "ray")
FAULTS = (
    "kill -9 at a random moment",
    "kill -9 before a file operation",
    "power cut, all states of the disk",
    "disk full in a run",
    "disk full at the other writers",
    "Ctrl-C",
    "Ctrl-C twice",
    "Ctrl-C or SIGTERM while loading",
    "out of memory in a forward",
    "an exception in a method's step",
    "NaN or infinite logits",
    "two runs on one folder",
    "one worker of two killed",
    "disk full at one worker of two",
    "two workers of a pool of three killed",
    "driver of a pool killed",
    "disk full at a worker of a pool",
    "disk full at the driver of a pool",
    "two workers of three on Ray killed",
    "driver of workers on Ray killed",
    "Ray node with two workers of three lost",
    "disk of workers on Ray full",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("faults") / "faults.json"
    kinds = [word for kind in KINDS for word in ("--only", kind)]
    subprocess.run([sys.executable, MAIN, "--short", "--out", out, *kinds], check=False, timeout=1200)
    return json.loads(out.read_text())["faults"]


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_lost_and_runs_recover(outcomes, name):
    result = outcomes[name]
    if result["skipped"]:
        pytest.skip(result["skipped"])
    assert result["notes"] == []
    assert result["tried"] > 0 and result["recovered"] == result["tried"] and result["lost"] == 0


def test_every_fault_is_looked_at(outcomes):
    assert {name for name, result in outcomes.items() if result["tried"] or result["skipped"]} == set(FAULTS)
