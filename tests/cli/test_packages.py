"""What an installed package brings by entry points is used where the command line names it, and not imported before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import large
from screens import output, refusal

from specbench import config
from specbench.config import UserError
from specbench.results.importers import import_files, tools
from specbench.results.stored import StoredRun

METHOD = """
from specbench.config import Settings as Base
from specbench.methods.chains.vanilla import Vanilla


class Settings(Base):
    width: int


def build(settings, pair, watch):
    return Vanilla(pair.session("target"))
"""
TRAIN = """
def train(job):
    job.out.write_text(f"{job.spec.name} {job.settings.width} {job.recipe.values['steps']}")
"""
HEADS = """
def import_head(checkpoint, pair, out, kind):
    out.write_text(f"{kind} of {checkpoint.name} for {pair}")
    return out
"""
COMMANDS = """
from typing import Annotated

from typer import Option

from specbench.cli.analyze.shared import PlainFormat, Run, show
from specbench.cli.options import Plain
from specbench.report.finding import Finding, Sheet


def texts(run: Run, most: Annotated[int, Option(help="how many")] = 3, format: PlainFormat = Plain.table) -> None:
    \"\"\"How many texts a run has, up to a number.\"\"\"
    show(Finding("texts", sheets=[Sheet(["most"], [[str(most)]], align="r")]), format)


def greet(name: Annotated[str, Option(help="whom to greet")] = "all") -> None:
    \"\"\"Greet somebody.

    `specbench greet --name you`
    \"\"\"
    print(f"hello {name}")


def grade(run, judge, tasks, device, dtype):
    return Finding("grades", sheets=[Sheet(["judge"], [[judge]], align="l")])
"""
FIGURES = """
from specbench.results.importers.foreign import Figures


def read(path):
    figures = Figures(path, "0" * 64, path.stem)
    for number, count in enumerate(path.read_text().split()):
        figures.add("theirs", number, 0, {"new_tokens": int(count), "wall_seconds": 0.5}, [])
    return [figures]
"""
FILES = {
    "method.py": METHOD,
    "figures.py": FIGURES,
    "train.py": TRAIN,
    "heads.py": HEADS,
    "commands.py": COMMANDS,
    "__init__.py": "",
    "theirs.yaml": "description: Theirs\npaper: a paper\nsettings:\n  width: {value: 3, source: the paper}\n",
    "recipes/theirs.yaml": "description: their recipe\nmethod: theirs\nsettings:\n  steps: {value: 7, source: us}\n",
}
ENTRIES = """
[specbench.methods]
theirs = their_package.method
[specbench.trainers]
theirs = their_package.train
[specbench.importers]
their-head = their_package.heads
their-tool = their_package.figures
[specbench.commands]
greet = their_package.commands:greet
[specbench.analyses]
texts = their_package.commands:texts
[specbench.judges]
theirs = their_package.commands:grade
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package, and a folder to work in."""
    site = tmp_path / "site"
    for name, text in FILES.items():
        path = site / "their_package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    facts = site / "their_package-2.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: their_package\nVersion: 2.0\n")
    (facts / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(tmp_path)
    yield site
    for name in [name for name in sys.modules if name.startswith("their_package")]:
        del sys.modules[name]


def imported() -> set[str]:
    return {name for name in sys.modules if name.startswith("their_package")}


def test_lists_import_nothing(package):
    assert "theirs" in output("list", "methods")
    assert "Of the package their_package 2.0." in " ".join(output("analyze", "--help").split())
    assert imported() == set()


def test_settings_lie_next_to_the_module(package):
    spec = config.load_method("theirs")
    assert (spec.description, spec.paper) == ("Theirs", "a paper")
    assert spec.settings["width"].value == 3 and spec.settings["width"].source == "the paper"


def test_a_trainer_with_its_recipe(package):
    words = ("train", "--method", "theirs", "--data", "pocket_gsm8k:calibration", "--out", "head.txt")
    output(*words, "--set", "theirs.width=5", "--recipe", "steps=9")
    assert Path("head.txt").read_text() == "theirs 5 9"


def test_a_trainer_is_not_run_for_a_file_that_names_it(package):
    """Only the command line grants it."""
    Path("own.yaml").write_text("description: mine\nmethod: theirs\n")
    line = refusal("train", "--method", "own.yaml", "--data", "pocket_gsm8k:calibration", "--out", "head.txt")
    assert "--allow-entry-point entry-point:theirs" in " ".join(line.split()) and imported() == set()


def test_an_importer(package):
    Path("checkpoint").mkdir()
    path = os.pathsep.join([str(package), str(config.PACKAGE.parent)])
    words = ("import", "their-head", "checkpoint", "--pair", "pocket", "--out", "head.txt")
    subprocess.run([sys.executable, "-m", "specbench.cli", *words], env={**os.environ, "PYTHONPATH": path}, check=True)
    assert Path("head.txt").read_text() == "their of checkpoint for pocket"


def test_figures_of_another_tool(package):
    Path("theirs.txt").write_text("4 8")
    run = import_files("their-tool", [Path("theirs.txt")], out=Path("run"))
    assert StoredRun(run).samples().new_tokens.tolist() == [4, 8]
    with pytest.raises(UserError, match="--before is for vllm; their-tool has no scrapes"):
        import_files("their-tool", [Path("theirs.txt")], before=Path("theirs.txt"))


def test_a_command_of_its_own(package):
    assert "greet" in output("--help") and imported() == set()
    assert output("greet", "--name", "you") == "hello you\n"
    assert "whom to greet" in output("greet", "--help")


def test_what_is_gone_is_not_found(package):
    """An environment may hold the entry points of a package whose files are on no path."""
    for path in (package / "their_package").rglob("*.py"):
        path.unlink()
    for path in sorted((package / "their_package").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (package / "their_package").rmdir()
    sys.path.append("elsewhere")
    try:
        assert "their-tool" not in tools() and "greet" not in output("--help")
    finally:
        sys.path.remove("elsewhere")


def test_an_analysis_with_options(package):
    assert "5" in output("analyze", "texts", "anywhere", "--most", "5").split()
    assert "how many" in output("analyze", "texts", "--help")


def test_a_judge(package, tmp_path):
    large(tmp_path / "run", ["pocket_gsm8k"], ["vanilla", "csd"], documents=3)
    assert "somebody" in output("score", "run", "--judge", "somebody", "--form", "theirs")
    assert "there are theirs, mt-bench" in " ".join(refusal("score", "run", "--judge", "x", "--form", "no").split())
