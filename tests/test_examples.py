"""Each script of examples/ runs as its first line says, in an empty folder, on one document."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAID = {  # arguments, and what is printed
    "compare_methods.py": (["1"], "speedup_decode_low"),
    "one_text.py": (["sps"], "committed"),
    "own_method.py": (["1"], "near-miss"),
    "own_pair.py": ([], "pld"),
}


def ran(name: str, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, EXAMPLES / name, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.long) for one in SAID if one != "own_method.py"])
def test_example(name, tmp_path):
    arguments, words = SAID[name]
    done = ran(name, arguments, tmp_path)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


def test_an_own_method(tmp_path):
    done = ran("own_method.py", ["1"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "near-miss" in done.stdout and "sps" in done.stdout


def test_servers_are_asked_for(tmp_path):
    done = ran("server.py", [], tmp_path)
    assert done.returncode == 1 and "NAME=URL" in done.stderr


def test_every_example_is_run_and_listed():
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {*SAID, "server.py"}
    text = (EXAMPLES / "README.md").read_text()
    assert [name for name in names if f"[{name}]({name})" not in text] == []
