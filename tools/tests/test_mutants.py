"""The list of mutations fits the code, and the check takes no mistake of a line for a defect that was found."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[2] / "tests" / "mutants" / "main.py"


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants_main", PLACE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_line_of_the_list_can_be_used(mutants):
    """A line whose text is gone would stop `make mutants` before it begins."""
    problems = {mutation.name: mutation.problem() for mutation in mutants.read_list()}
    assert {name: problem for name, problem in problems.items() if problem} == {}


def test_no_mutation_is_a_mistake_of_its_line(mutants, tmp_path):
    """A name that is not there, or what cannot be parsed, fails in every test."""
    for number, one in enumerate(mutants.read_list()):
        if one.file.endswith(".py"):
            text = (mutants.ROOT / one.file).read_text().replace(one.old, one.new)
            (tmp_path / f"{number:04}.py").write_text(text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "-q", "--select", "F821,E9", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def judged(mutants, tmp_path, monkeypatch):
    """What becomes of a mutation of a small project: what takes the place of `value * 2`."""
    (tmp_path / "code.py").write_text("def twice(value):\n    return value * 2\n")
    (tmp_path / "test_code.py").write_text("import code\n\ndef test():\n    assert code.twice(3) == 6\n")
    (tmp_path / "list.txt").write_text("")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)

    def judge(new: str) -> int:
        (tmp_path / "list.txt").write_text(f"code.py :: value * 2 :: {new} :: test_code.py\n")
        given = ["--jobs", "1", "--results", str(tmp_path / "results.json"), "--list", str(tmp_path / "list.txt")]
        monkeypatch.setattr(sys, "argv", ["main.py", *given])
        return mutants.main()

    return judge


@pytest.mark.long
@pytest.mark.parametrize(
    ("new", "code", "word"),
    [
        ("value * 3", 0, "1 found"),
        ("value + value", 1, "1 survived"),
        ("valve * 2", 2, "NameError"),
        ("(", 2, "1 wrong"),
    ],
)
def test_what_becomes_of_a_mutation(judged, new, code, word, capsys):
    assert judged(new) == code
    assert word in capsys.readouterr().out


def test_a_choice_of_none_is_no_success(mutants, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["main.py", "--only", "typo"])
    assert mutants.main() == 2
    assert "no mutation has 'typo'" in capsys.readouterr().out
