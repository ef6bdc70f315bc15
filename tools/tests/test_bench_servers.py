"""The recipe that times servers next to the engine here, with a server that streams recorded answers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake import Fake, serving
from test_client import TOKENIZER

from specbench.results.stored import StoredRun

ROOT = Path(__file__).parents[2]


def recipe(**variables):
    """What the recipe prints, with the commands of this Python first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        [ROOT / "tools" / "recipes" / "bench-servers.sh"],
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_without_servers_it_says_how_to_name_some():
    (line,) = recipe(SERVERS="").splitlines()
    assert "SERVERS='vllm=http://127.0.0.1:8000' make bench" in line


@pytest.mark.long
def test_servers_beside_own_methods(tmp_path):
    with serving(Fake(TOKENIZER, delay=0.002)) as one, serving(Fake(TOKENIZER, delay=0.002)) as two:
        names = f"vllm={one.url} other={two.url}"
        message = recipe(SERVERS=names, DOCUMENTS="2", RUNTIME="eager", OUT=str(tmp_path / "run"))
    run = StoredRun(tmp_path / "run")
    samples = run.samples()
    counts = samples[~samples.warmup].groupby("method").size()
    assert counts.to_dict() == dict.fromkeys(("vanilla", "sps", "pld-vllm", "vllm", "other"), 2 * len(run.plan.tasks))
    assert {run.plan.against(name) for name in ("vllm", "other")} == {"vanilla"}
    assert "speedup" in message and "TTFT" in message
