"""Each script of examples/ runs as its first line says, in an empty folder, on one document. So does the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open
from screens import output

import specbench

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


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The package as an installer leaves it: its modules, and the entry points of its pyproject.toml."""
    source, site = EXAMPLES / "package", tmp_path / "site"
    shutil.copytree(source / "followers", site / "followers")
    groups = re.findall(r'entry-points\."(.+)"\]\n((?:\w+ = ".+"\n)+)', (source / "pyproject.toml").read_text())
    facts = site / "followers-0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: followers\nVersion: 0.1\n")
    lines = (f"[{group}]\n{entries.replace(chr(34), '')}" for group, entries in groups)
    (facts / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(tmp_path)
    yield site
    for name in [name for name in sys.modules if name.partition(".")[0] == "followers"]:
        del sys.modules[name]


def test_the_package_trains_and_decodes(package):
    """The command that the training prints is one that runs. The network learns, so that it drafts something right."""
    words = ("train", "--method", "followers", "--suite", "smoke", "--documents", "8", "--out", "f.safetensors")
    trained = " ".join(output(*words).split())
    assert "held out: " in trained and "f.answers" in trained
    with safe_open("f.safetensors", "pt") as file:
        assert '"kind": "followers"' in file.metadata()["specbench"]
    next_command = trained.partition("next: specbench ")[2].split()
    output(*next_command, "--limit", "1", "--out", "runs/f")
    rounds = specbench.load_run("runs/f").rounds
    assert set(rounds.method) == {"vanilla", "followers"}
    assert rounds[rounds.method == "followers"].accepted.sum() > 0


@pytest.mark.long
def test_the_packages_own_test(package):
    command = [sys.executable, "-m", "pytest", "-q", EXAMPLES / "package", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent), str(package)])}
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_servers_are_asked_for(tmp_path):
    done = ran("server.py", [], tmp_path)
    assert done.returncode == 1 and "NAME=URL" in done.stderr


def test_every_example_is_run_and_listed():
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {*SAID, "server.py"}
    text = (EXAMPLES / "README.md").read_text()
    assert [name for name in names if f"[{name}]({name})" not in text] == []
