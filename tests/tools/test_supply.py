"""What is installed is what is locked; the wheel brings all it needs and runs where nothing else of the project is."""

import ast
import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PathDistribution, distributions, packages_distributions
from pathlib import Path

import licences
import lock
import pandas as pd
import pytest
from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
SYSTEMS = {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}
PROJECT = licences.tomllib.loads((ROOT / "pyproject.toml").read_text())
DECLARED = [
    *PROJECT["build-system"]["requires"],
    *PROJECT["project"]["dependencies"],
    *(line for extra in PROJECT["project"]["optional-dependencies"].values() for line in extra),
]
FILES = sorted((ROOT / "tools" / "supply").glob("*.txt"))
HASHED = re.compile(r"([A-Za-z0-9._-]+)==(\S+?)(?: ; (.+?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def locked(python: str, system: str, full: str = "") -> dict[str, str]:
    """Versions by canonical name that one Python on one system gets, torch as its build for GPUs.

    `python` is such as 3.11, and `full` such as 3.11.7; default: its first release.
    """
    here = default_environment() | {
        "python_version": python,
        "python_full_version": full or f"{python}.0",
        "sys_platform": system,
        "platform_system": SYSTEMS[system],
        "platform_machine": "x86_64",
    }
    found: dict[str, str] = {}
    for file in FILES:
        for name, version, marker, _ in HASHED.findall(file.read_text()):
            if file.stem != "torch-cpu" and (not marker or Marker(marker).evaluate(here)):
                assert canonicalize_name(name) not in found, f"{name} is locked twice"
                found[canonicalize_name(name)] = version
    return found


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_is_locked_within_its_range(python, system):
    versions = locked(python, system)
    for one in map(Requirement, DECLARED):
        name = canonicalize_name(one.name)
        assert name in versions, f"{name} is not locked: make lock"
        assert one.specifier.contains(versions[name]), f"{one} is locked as {versions[name]}: make lock"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_lock_file_holds_nothing_but_pinned_and_hashed_packages(file):
    text = re.sub(r"(?m)^#.*\n", "", file.read_text())
    assert text
    assert HASHED.sub("", text) == ""
    assert not re.search(r"://|index-url|find-links", file.read_text())


def test_the_lock_files_are_those_that_are_installed():
    assert {file.stem for file in FILES} == {"build", "torch-cpu", "torch-gpu", "tested", "peers", "uv"}
    done = subprocess.run(
        ["make", "-B", "-n", ".venv/.installed", "bench-peers", "lock"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    commands = [one for line in done.stdout.splitlines() for one in line.split("||") if "pip install" in one]
    assert all("--no-deps" in one and "--no-build-isolation" in one for one in commands)
    unhashed = [one for one in commands if "--require-hashes" not in one]
    assert [one.split()[-2:] for one in unhashed] == [["-e", "."]] * len(unhashed)
    assert set(re.findall(r"-r tools/supply/([\w-]+)\.txt", done.stdout)) == {file.stem for file in FILES}


def test_torch_for_cpus_and_for_gpus_are_one_version():
    (cpu,) = re.findall(r"(?m)^torch==(\S+)\+cpu ", (ROOT / "tools" / "supply" / "torch-cpu.txt").read_text())
    assert cpu == locked("3.11", "linux")["torch"]
    assert not [name for name in locked("3.11", "darwin") if name.startswith("nvidia")]


def test_what_is_installed_here_is_what_is_locked():
    """Else the tests say nothing of the locked set. Peers may be missing: nothing but `make bench` needs them."""
    versions = locked(".".join(map(str, sys.version_info[:2])), sys.platform, platform.python_version())
    found = {canonicalize_name(one.name): one for one in distributions()}
    needed = licences.closure(found, DECLARED)
    assert needed >= {"torch", "lm-eval", "sympy", "httpx2", "pytest", "hatchling", "pluggy"}
    for name in needed:
        assert found[name].version.removesuffix("+cpu") == versions.get(name), f"{name}: make"


def test_what_is_imported_is_declared():
    """What only others bring may go with them. Two are brought on purpose; vLLM is looked for, never needed."""
    brought = {"pydantic-core": "pydantic", "math-verify": "lm-eval"}
    declared = {canonicalize_name(Requirement(line).name) for line in DECLARED}
    assert declared >= set(brought.values())
    packages = {name: canonicalize_name(owners[0]) for name, owners in packages_distributions().items()}
    imported = set()
    for file in [*(ROOT / "specbench").rglob("*.py"), *(ROOT / "suites").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(str(node.module).split(".")[0])
    needed = {packages.get(name, canonicalize_name(name)) for name in imported - sys.stdlib_module_names - {"vllm"}}
    assert needed >= {"torch", "lm-eval", "pyyaml", "datasets"}
    assert needed - declared - brought.keys() - {"specbench", "specbench-harness"} == set()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "a==1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\nb==2 ; python_version < '3.11' \\\n    --hash=x\n",
            2,
        ),
        ("# Written.\n# More.\n", 0),
    ],
)
def test_the_lock_is_read_back_whole(text, parts, tmp_path):
    (tmp_path / "some.txt").write_text(text)
    read = lock.entries(tmp_path / "some.txt")
    assert len(read) == parts
    if parts:
        assert list(read) == ["a==1", "b==2 ; python_version < '3.11'"]
        assert "".join(read.values()) == text
    assert lock.entries(tmp_path / "none.txt") == {}


# --- licences


def made(folder: Path, name: str, *lines: str) -> None:
    where = folder / f"{name}-1.0.dist-info"
    where.mkdir()
    (where / "METADATA").write_text(
        "\n".join(["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *lines, "", ""])
    )


def test_licences_of_made_packages(tmp_path):
    lesser = "License :: OSI Approved :: GNU Lesser General Public License v2 or later (LGPLv2+)"
    made(tmp_path, "whole", "License-Expression: MIT", "License: BSD", "Requires-Dist: by_classifier[more]>=1")
    made(tmp_path, "By.Classifier", "License: MIT", f"Classifier: {lesser}", 'Requires-Dist: field; extra == "more"')
    made(tmp_path, "field", "License:", "        ====", "        The Kiwi terms", "        and a lot more of them")
    made(tmp_path, "mixed", "License-Expression: MPL-2.0 AND MIT", 'Requires-Dist: absent; python_version < "3"')
    made(tmp_path, "silent", "Classifier: License :: OSI Approved")
    made(tmp_path, "unknown", "License: UNKNOWN")
    made(tmp_path, "affero", "License: GNU Affero General Public License v3")
    made(tmp_path, "gnu", "License: GNU General Public License")
    made(tmp_path, "lesser", "License: GNU Lesser General Public License")
    made(tmp_path, "abbreviated", "License-Expression: GPL-3.0-only", "Requires-Dist: silent")
    made(tmp_path, "stranger", "License: MIT")
    made(tmp_path, "long", "License: " + "word " * 40)
    project = {
        "dependencies": ["whole>=1"],
        "optional-dependencies": {"openvino": ["Mixed"], "dev": ["abbreviated", "whole"]},
    }
    here = {canonicalize_name(file.name.split("-")[0]) for file in tmp_path.iterdir()}
    table = licences.rows(distributions(path=[str(tmp_path)]), (here | {"not-installed"}) - {"stranger"}, project)
    assert [(row.package, row.licence, row.copyleft, row.needed) for row in table if row.package != "long"] == [
        ("abbreviated", "GPL-3.0-only", "GPL", "dev"),
        ("affero", "GNU Affero General Public License v3", "AGPL", "dev"),
        ("by-classifier", lesser.split(" :: ")[-1], "LGPL", "run"),
        ("field", "The Kiwi terms", "", "run"),
        ("gnu", "GNU General Public License", "GPL", "dev"),
        ("lesser", "GNU Lesser General Public License", "LGPL", "dev"),
        ("mixed", "MPL-2.0 AND MIT", "MPL", "option"),
        ("silent", "unknown", "", "dev"),
        ("unknown", "unknown", "", "dev"),
        ("whole", "MIT", "", "run"),
    ]
    (long,) = (row for row in table if row.package == "long")
    assert len(long.licence) == licences.LONGEST


def test_licences_says_what_is_unknown_or_not_here(tmp_path, monkeypatch, capsys):
    made(tmp_path, "pandas", "License-Expression: LGPL-3.0-only")
    made(tmp_path, "scipy")
    monkeypatch.setattr(licences, "distributions", lambda: distributions(path=[str(tmp_path)]))
    licences.main()
    shown = capsys.readouterr().out
    assert "Copyleft: pandas\nUnknown: scipy\n" in shown
    assert "torch" in shown.split("not installed here:")[1]
    licences.main("--csv")
    assert capsys.readouterr().out.splitlines() == [
        "package,version,licence,copyleft,needed",
        "pandas,1.0,LGPL-3.0-only,LGPL,run",
        "scipy,1.0,unknown,,run",
    ]


# --- the wheel


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
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """The programs of an environment that holds the wheel alone; dependencies are read from the one that runs this."""
    environment = tmp_path_factory.mktemp("environment")
    (wheel,) = built.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    programs = environment / ("Scripts" if sys.platform == "win32" else "bin")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", programs / "python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (packages,) = environment.rglob("site-packages")
    others = {str(Path(str(one.locate_file("")))) for one in distributions() if isinstance(one, PathDistribution)}
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
    wanted |= {f"specbench/suites/{name}": content for name, content in tree(ROOT / "suites").items()}
    published = tree(ROOT / "results" / "published")
    wanted |= {f"specbench/published_figures/{name}": content for name, content in published.items()}
    kinds = {Path(name).suffix for name in wanted}
    assert kinds >= {".py", ".yaml", ".safetensors", ".json", ".jsonl", ".css", ".js"}, (
        "the walk missed a part of the tree"
    )
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert sorted(held) == sorted(wanted)
    assert [name for name in held if held[name] != wanted[name]] == []


def test_the_source_distribution_holds_the_tests_and_locks_and_no_runs(built):
    (packed,) = built.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert names >= {"Makefile", "README.md", "pyproject.toml", *(f"tools/supply/{file.name}" for file in FILES)}
    assert names >= {f"tests/{name}" for name in tree(ROOT / "tests") if name.endswith(".py")}
    assert not [name for name in names if re.match(r"runs/|pocket-work/|\.venv/|build/|dist/|\.git/", name)]


def test_the_installed_wheel_runs_from_anywhere(installed, tmp_path):
    where = run(installed / "python", "-c", "import specbench; print(specbench.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent.resolve())
    assert "Usage: specbench" in run(installed / "specbench", "--help", cwd=tmp_path)
    pairs = run(installed / "specbench", "list", "pairs", cwd=tmp_path)
    assert all(file.stem in pairs for file in (ROOT / "suites" / "pairs").glob("*.yaml"))


def test_the_installed_wheel_decodes_and_scores_the_bundled_suite(installed, tmp_path):
    options = ("--method", "sps", "--suite", "pocket", "--limit", "1", "--out", tmp_path / "run")
    run(installed / "specbench", "run", *options, "--allow-code-execution", cwd=tmp_path)
    summary = pd.read_parquet(tmp_path / "run" / "summary.parquet")
    tasks = summary[summary["task"] != "average"]
    assert sorted(tasks["task"].unique()) == ["pocket_cnndm", "pocket_gsm8k", "pocket_humaneval", "pocket_math500"]
    assert sorted(tasks["method"].unique()) == ["sps", "vanilla"]
    assert tasks["accuracy"].between(0, 1).all()
    assert tasks["accuracy"].mean() > 0.5  # the trained pair solves most of them; random weights none
