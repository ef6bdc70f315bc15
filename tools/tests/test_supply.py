"""What is installed is what is locked, and what is imported is declared."""

import ast
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

import licences
import lock
import pytest
from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
SYSTEMS = {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}
PROJECT = licences.tomllib.loads((ROOT / "pyproject.toml").read_text())
OWN = "specbench-"  # distributions of this project
DECLARED = [
    *PROJECT["build-system"]["requires"],
    *PROJECT["project"]["dependencies"],
    *(
        line
        for extra in PROJECT["project"]["optional-dependencies"].values()
        for line in extra
        if not line.startswith(OWN)
    ),
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
    result: dict[str, str] = {}
    for file in FILES:
        for name, version, marker, _ in HASHED.findall(file.read_text()):
            if file.stem != "torch-cpu" and (not marker or Marker(marker).evaluate(here)):
                assert canonicalize_name(name) not in result, f"{name} is locked twice"
                result[canonicalize_name(name)] = version
    return result


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
    wanted = {"build", "torch-cpu", "torch-gpu", "tested", "models", "workers", "peers", "uv", "server"}
    assert {file.stem for file in FILES} == wanted | {"llamacpp", "llamacpp-build"}
    done = subprocess.run(
        ["make", "-B", "-n", ".venv/.installed", ".venv/.smollm2", "bench-peers", "fault-test", "lock"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},  # as by itself
    )
    commands = [word for line in done.stdout.splitlines() for word in line.split("||") if "pip install" in word]
    assert all("--no-deps" in command and "--no-build-isolation" in command for command in commands)
    unhashed = [command for command in commands if "--require-hashes" not in command]
    assert [one.split()[-4:] for one in unhashed] == [["-e", ".", "-e", "extras"]] * len(unhashed)
    recipe = (ROOT / "tools" / "recipes" / "server-test.sh").read_text()
    installed = re.findall(r"-r tools/supply/([\w-]+)\.txt", done.stdout + recipe)
    assert set(installed) == {file.stem for file in FILES}
    assert re.findall(r".*-r tools/supply/server.*", recipe)[0].count("--require-hashes --no-deps") == 1


def test_torch_for_cpus_and_for_gpus_are_one_version():
    (cpu,) = re.findall(r"(?m)^torch==(\S+)\+cpu ", (ROOT / "tools" / "supply" / "torch-cpu.txt").read_text())
    assert cpu == locked("3.11", "linux")["torch"]
    assert not [name for name in locked("3.11", "darwin") if name.startswith("nvidia")]


def test_what_is_installed_here_is_what_is_locked():
    """Else the tests say nothing of the locked set. Peers, Ray and submitit may be missing: `make` installs none."""
    versions = locked(".".join(map(str, sys.version_info[:2])), sys.platform, platform.python_version())
    by_name = {canonicalize_name(distribution.name): distribution for distribution in distributions()}
    needed = licences.closure(by_name, DECLARED)
    assert needed >= {"torch", "lm-eval", "sympy", "httpx2", "pytest", "hatchling", "pluggy"}
    for name in needed:
        assert by_name[name].version.removesuffix("+cpu") == versions.get(name), f"{name}: make"


def test_what_is_imported_is_declared():
    """What only others bring may go with them. Two are brought on purpose; vLLM is looked for, never needed."""
    brought = {"pydantic-core": "pydantic", "math-verify": "lm-eval"}
    declared = {canonicalize_name(Requirement(line).name) for line in DECLARED}
    assert declared >= set(brought.values())
    packages = {name: canonicalize_name(owners[0]) for name, owners in packages_distributions().items()}
    packages["llama_cpp"] = "llama-cpp-python"  # which may not be installed
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
