"""The house keeps its floors: imports go down, files form no circle, and the root of the package stays small."""

import ast
import graphlib
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "specbench"
EXTRAS = ROOT / "extras" / "specbench_extras"


def imports() -> dict[str, set[str]]:
    """The modules of the package that each of its modules imports, wherever in the file."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        nodes = list(ast.walk(ast.parse(path.read_text())))
        targets = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                targets |= {target if target in modules else node.module for target in full}
        graph[name] = targets & modules.keys() - {name}
    return graph


TOP = {"docs", "examples", "extras", "results", "specbench", "suites", "tests", "tools", ".ci", ".github"}


def test_the_top_level_has_no_folder_that_a_command_left_there():
    """Such as `fuzz-failures/`, which holds inputs and the paths of the machine that made them."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no checkout of git")
    assert {name.partition("/")[0] for name in done.stdout.splitlines() if "/" in name} == TOP


def test_files_form_no_circle():
    graph = imports()
    assert len(graph) > 200
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_the_root_holds_packages_and_at_most_four_modules():
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert len(modules) <= 4, modules
    packages = {path.parent for path in PACKAGE.glob("*/__init__.py")}
    assert packages == {path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}


def test_every_package_says_what_it_is_for():
    for path in (*PACKAGE.rglob("__init__.py"), *EXTRAS.rglob("__init__.py")):
        line = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        assert len(line) > 20, path.relative_to(ROOT)


def test_the_main_loop_fits_on_a_few_screens():
    assert len((PACKAGE / "measure" / "loop.py").read_text().splitlines()) <= 200


UPWARDS = {
    "engine/accept.py": "from specbench.methods.lossy import csd",
    "results/records.py": "from specbench.measure import loop",
    "analysis/metrics.py": "from specbench.tasks import harness",
    "report/words.py": "from specbench.papers import published",
    "studies/audit.py": "from specbench.training import heads",
    "cli/score.py": "from specbench_extras.mt_judge import score",
}


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("house")
    for package in (PACKAGE, EXTRAS):
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True)


def test_the_floors_are_kept(house):
    done = lint(house)
    assert done.returncode == 0, done.stdout


def test_every_import_against_the_floors_is_seen(house):
    for name, line in UPWARDS.items():
        path = house / "specbench" / name
        path.write_text(f"{path.read_text()}\n{line}\n")
    done = lint(house)
    assert done.returncode == 1 and "BROKEN" in done.stdout
    for name, line in UPWARDS.items():
        _, package, _, module = line.split()
        one = "specbench." + name.removesuffix(".py").replace("/", ".")
        assert f"{one} -> {package}.{module}" in done.stdout


def test_extras_use_only_what_any_package_may(house):
    path = house / "specbench_extras" / "osd" / "osd.py"
    path.write_text(f"{path.read_text()}\nfrom specbench.measure import loop\n")
    done = lint(house)
    assert done.returncode == 1 and "specbench_extras.osd.osd -> specbench.measure.loop" in done.stdout


def test_every_paper_is_a_folder_that_an_entry_point_finds():
    """A folder without one would never be used."""
    declared = (EXTRAS.parent / "pyproject.toml").read_text()
    for folder in EXTRAS.iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            assert f'"{EXTRAS.name}.{folder.name}.' in declared, folder.name


def test_no_two_files_of_tests_have_one_name():
    """pytest would import the first for both, and end before it runs anything."""
    names = [path.name for folder in ("tests", "extras", "tools") for path in (ROOT / folder).rglob("test_*.py")]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_the_name_of_a_class_means_one_thing():
    """But for `Settings`, which every method has: the module says whose."""
    trees = (ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py"))
    classes = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in classes.items() if count > 1] == ["Settings"]
