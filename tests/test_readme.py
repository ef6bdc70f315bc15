"""Every command of the README runs as it is written there, on fewer documents."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from specbench.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.S)
COMMANDS = [
    line for kind, block in BLOCKS if kind == "" for line in block.splitlines() if line.startswith("specbench ")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that looks like the clone, with the files that the README shows."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("specbench", "suites"):
        (folder / name).symlink_to(ROOT / name)
    for kind, block in BLOCKS:
        if kind == "yaml":
            name = block.split("\n", 1)[0].removeprefix("# ")
            yaml.safe_load(block)
            (folder / name).write_text(block)
        elif kind == "jsonl":
            (folder / "traces.jsonl").write_text(block)
    return folder


def test_the_readme_has_commands():
    assert len(COMMANDS) >= 14


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, folder, monkeypatch):
    """In the README's order, since later commands read the runs of earlier ones."""
    monkeypatch.chdir(folder)
    fewer = re.sub(r"--(limit|documents|draws) \d+", r"--\1 2", command)
    result = CliRunner().invoke(app, shlex.split(fewer)[1:])
    assert result.exit_code == 0, result.output
    assert result.output.strip()


@pytest.mark.parametrize("target", re.findall(r"^make ([\w-]+)", README, flags=re.M))
def test_make_targets_exist(target):
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_table_is_a_real_one():
    """The table at the top has the methods, the scores with their errors and the intervals of one run."""
    table = README.split("<!-- table:begin -->")[1].split("<!-- table:end -->")[0]
    assert "vanilla" in table and "csd" in table
    assert re.search(r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\]", table)
    assert "±" in table
