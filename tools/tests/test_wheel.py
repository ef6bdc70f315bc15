"""The wheel brings all it needs, and runs where nothing else of the project is: the walks of newcomers."""

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from importlib.metadata import PathDistribution, distributions
from pathlib import Path

import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).parents[2]
APART = re.compile(r"pairs/weights/|trained/|tasks/pocket/.*\.gz$")  # what the wheel of the bundled models has


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the source distribution, and the wheel that is built from nothing else, without a network."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    source = folder / packed.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    for name in ("extras", "suites"):
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / name, cwd=source / name)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """The programs of an environment that holds the wheels of code and of the bundled models alone.

    Dependencies are read from the environment that runs this.
    """
    environment = tmp_path_factory.mktemp("environment")
    wheels = [*built.glob("*.whl"), *(built / "suites").glob("*.whl")]
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    programs = environment / ("Scripts" if sys.platform == "win32" else "bin")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", programs / "python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", *wheels)
    (packages,) = environment.rglob("site-packages")
    others = {
        str(Path(str(distribution.locate_file(""))))
        for distribution in distributions()
        if isinstance(distribution, PathDistribution)
    }
    (packages / "others.pth").write_text("\n".join(sorted(others - {str(ROOT)})))
    return programs


def run(*command: object, cwd: Path | None = None) -> str:
    """What the command printed; nothing of the checkout is on its path. Fails with all of it if it did not end well."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tree(folder: Path) -> dict[str, bytes]:
    """The files below a folder of the checkout, compiled ones aside."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_the_wheel_holds_all_that_is_used_and_nothing_else(built):
    wanted = {f"specbench/{name}": content for name, content in tree(ROOT / "specbench").items()}
    suites = tree(ROOT / "suites")
    wanted |= {f"specbench/suites/{name}": text for name, text in suites.items() if not APART.match(name)}
    wanted.pop("specbench/suites/pyproject.toml")
    published = tree(ROOT / "results" / "published")
    wanted |= {f"specbench/published_figures/{name}": content for name, content in published.items()}
    kinds = {Path(name).suffix for name in wanted}
    assert kinds >= {".py", ".yaml", ".jsonl", ".css", ".js"}, "the walk missed a part of the tree"
    (wheel,) = built.glob("*.whl")
    assert wheel.stat().st_size < 5e6
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert sorted(held) == sorted(wanted)
    assert [name for name in held if held[name] != wanted[name]] == []


def test_the_wheel_of_the_bundled_models_holds_the_rest(built):
    suites = tree(ROOT / "suites")
    (wheel,) = (built / "suites").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {name: content for name, content in suites.items() if APART.match(name)}
    assert held == {f"specbench_pocket/{name}": content for name, content in wanted.items()}


def test_the_code_alone_says_where_the_bundled_models_are(built, installed, tmp_path):
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", installed / "python")
    try:
        run(*pip, "uninstall", "--quiet", "--yes", "specbench-pocket", cwd=tmp_path)
        command = [installed / "specbench", "run", "--method", "csd", "--suite", "math"]
        done = subprocess.run([str(word) for word in command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and "pip install 'specbench-harness[pocket]'" in " ".join(done.stderr.split())
    finally:
        run(*pip, "install", "--quiet", "--no-deps", "--no-index", *(built / "suites").glob("*.whl"), cwd=tmp_path)


def test_the_wheel_of_the_extras_holds_all_but_its_tests(built):
    wanted = {f"specbench_extras/{name}": text for name, text in tree(ROOT / "extras" / "specbench_extras").items()}
    (wheel,) = (built / "extras").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert held == {name: text for name, text in wanted.items() if "/tests/" not in name}
    assert {Path(name).suffix for name in held} == {".j2", ".md", ".py", ".yaml", ".safetensors"}


def test_the_wheel_says_what_it_is(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = message_from_bytes(archive.read(name))
        assert archive.read(name.replace("METADATA", "licenses/LICENSE")) == (ROOT / "LICENSE").read_bytes()
    assert about["License-Expression"] == "Apache-2.0" and about["Requires-Python"] == ">=3.10"
    assert "Typing :: Typed" in about.get_all("Classifier")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (about["Version"], about["License-Expression"])


def test_the_source_distribution_holds_the_tests_and_locks_and_no_runs(built):
    (packed,) = built.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert names >= {"Makefile", "README.md", "pyproject.toml", "LICENSE"}
    assert names >= {f"tools/supply/{file.name}" for file in (ROOT / "tools" / "supply").glob("*.txt")}
    assert names >= {f"tests/{name}" for name in tree(ROOT / "tests") if name.endswith(".py")}
    assert not [name for name in names if re.match(r"runs/|pocket-work/|\.venv/|build/|dist/|\.git/", name)]


def test_the_installed_wheel_runs_from_anywhere(installed, tmp_path):
    where = run(installed / "python", "-c", "import specbench; print(specbench.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent.resolve())
    assert "Usage: specbench" in run(installed / "specbench", "--help", cwd=tmp_path)
    methods = run(installed / "specbench", "list", "methods", cwd=tmp_path)
    assert "csd " in methods and "omnidraft" not in methods  # which the extras bring; here only their entry points are
    pairs = run(installed / "specbench", "list", "pairs", cwd=tmp_path)
    assert all(file.stem in pairs for file in (ROOT / "suites" / "pairs").glob("*.yaml"))


@pytest.mark.parametrize(
    "words",
    [("leaderboard", "one"), ("analyze", "network", "one"), ("run", "--method", "omnidraft", "--suite", "smoke")],
)
def test_what_only_the_extras_have_is_said_to_be_theirs(installed, tmp_path, words):
    done = subprocess.run([str(installed / "specbench"), *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "the package specbench-extras brings more" in " ".join(
        re.sub(r"[^\w\s-]", " ", done.stderr).split()
    )


@pytest.mark.long
def test_the_installed_wheel_decodes_and_scores_the_bundled_suite(installed, tmp_path):
    options = ("--method", "sps", "--suite", "pocket", "--limit", "1", "--out", tmp_path / "run")
    run(installed / "specbench", "run", *options, "--allow-code-execution", cwd=tmp_path)
    summary = pd.read_parquet(tmp_path / "run" / "summary.parquet")
    tasks = summary[summary["task"] != "average"]
    assert sorted(tasks["task"].unique()) == ["pocket_cnndm", "pocket_gsm8k", "pocket_humaneval", "pocket_math500"]
    assert sorted(tasks["method"].unique()) == ["sps", "vanilla"]
    assert tasks["accuracy"].between(0, 1).all()
    assert tasks["accuracy"].mean() > 0.5  # the trained pair solves most of them; random weights none


SUMS = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: sums.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{q}}"
doc_to_target: "{{a}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 8}
metric_list: [{metric: exact_match}]
"""
FROM_PYTHON = """
import specbench

run = specbench.run("sps", "smoke", "runs/first", limit=1, settings={"sps.gamma": 3})
assert run.finished and run.rounds.drafted.max() == 3
assert set(specbench.compare(["runs/first"]).method) == {"vanilla", "sps"} == set(run.summary.method)
assert len(run.samples) == len(specbench.load_run("runs/first").samples)
specbench.plots.draw("depth", run, out="depth.svg")
print(specbench.decode("Tom has 3 apples.", method="csd", max_new_tokens=20).text)
"""


@pytest.mark.long
def test_a_walk_from_python(installed, tmp_path):
    (tmp_path / "walk.py").write_text(FROM_PYTHON)
    assert run(installed / "python", "walk.py", cwd=tmp_path).strip()
    assert {path.name for path in tmp_path.iterdir()} == {"walk.py", "runs", "depth.svg"}


@pytest.mark.long
def test_a_walk_with_an_own_method(installed, tmp_path):
    specbench, few = installed / "specbench", ("--suite", "smoke")
    run(specbench, "new", "method", "mine", cwd=tmp_path)
    audited = run(specbench, "audit", "--method", "mine.py", "--documents", "2", "--draws", "25", *few, cwd=tmp_path)
    assert "lossless" in audited
    run(specbench, "run", "--method", "mine.py", *few, "--limit", "2", "--out", "runs/mine", cwd=tmp_path)
    assert "mine" in run(specbench, "compare", "runs/mine", cwd=tmp_path)
    run(installed / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py", cwd=tmp_path)


@pytest.mark.long
def test_walks_with_own_prompts_tasks_and_models(installed, tmp_path):
    specbench = installed / "specbench"
    questions = [
        {"question_id": 81, "category": "writing", "turns": ["Tom has 3 apples and buys 4 more.", "And then 2 more?"]},
        {"question_id": 110, "category": "math", "turns": ["What is 3 + 4?"], "reference": ["7"]},
    ]
    (tmp_path / "question.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    asked = ("--prompts", "question.jsonl", "--method", "sps", "--max-new-tokens", "16")
    table = run(specbench, "run", *asked, "--out", "runs/asked", cwd=tmp_path)
    assert "math" in table and "sps" in table
    (tmp_path / "sums.jsonl").write_text(
        "".join(json.dumps({"q": f"{n} + 1 =", "a": str(n + 1)}) + "\n" for n in range(4))
    )
    (tmp_path / "sums.yaml").write_text(SUMS)
    own = ("--task-dir", ".", "--task", "sums", "--method", "sps", "--limit", "2", "--allow-code-execution")
    assert "sums" in run(specbench, "run", *own, "--out", "runs/sums", cwd=tmp_path)
    weights = next(installed.parent.rglob("specbench_pocket/pairs/weights"))
    models = ("--target", weights / "target", "--draft", weights / "draft")
    named = run(specbench, "run", *models, "--task", "pocket_gsm8k", "--method", "sps", "--limit", "2", cwd=tmp_path)
    assert "target-draft" in named


@pytest.mark.long
def test_the_readmes_tour(installed, tmp_path):
    """Each line as it stands, in an empty folder, but on two documents a task."""
    tour = (ROOT / "README.md").read_text().split("## Tour")[1].split("```sh\n")[1].split("```")[0]
    for line in tour.splitlines():
        words = shlex.split(re.sub(r"--limit \d+", "--limit 2", line))
        assert run(installed / words[0], *words[1:], cwd=tmp_path)
    assert (tmp_path / "report.html").exists() and (tmp_path / "speed-accuracy.svg").exists()
