"""A release says one version everywhere, and its workflow publishes nothing that was not tested and tried."""

import re
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"


def field(folder: str, name: str) -> str:
    """A field of a distribution's pyproject.toml that is one text, and stands there once."""
    (value,) = re.findall(rf'^{name} = "(.+)"$', (ROOT / folder / "pyproject.toml").read_text(), re.M)
    return value


@pytest.fixture(scope="module")
def release() -> dict:
    return yaml.safe_load((WORKFLOWS / "release.yml").read_text())["jobs"]


def test_all_that_name_a_version_name_the_same():
    version = field(".", "version")
    assert field("extras", "version") == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert next(heading for heading in headings if heading != "Unreleased") == version
    assert [Version(one) for one in headings if one != "Unreleased"] == sorted(
        (Version(one) for one in headings if one != "Unreleased"), reverse=True
    )


def test_the_extras_take_the_code_that_they_are_released_with():
    (line,) = re.findall(r'^dependencies = \["(.+?)"\]', (ROOT / "extras" / "pyproject.toml").read_text(), re.M)
    needed, version = Requirement(line), Version(field(".", "version"))
    assert needed.name == "specbench-harness" and version in needed.specifier
    assert f"{version.major}.{version.minor + 1}" not in needed.specifier


def test_publishing_waits_for_tests_and_for_wheels_that_ran(release):
    assert set(release["publish"]["needs"]) == {"test", "try"}
    assert release["test"]["uses"] == "./.github/workflows/test.yml"
    built = " ".join(step.get("run", "") for step in release["build"]["steps"])
    for folder in re.search(r"for folder in (.+?);", built).group(1).split():
        assert (ROOT / folder / "pyproject.toml").is_file()
    assert "for folder in . extras suites;" in built and 'grep -qx "## $version" CHANGELOG.md' in built


def test_three_pythons_of_the_classifiers_are_tested_and_tried(release):
    tested = yaml.safe_load((WORKFLOWS / "test.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]["python"]
    tried = release["try"]["strategy"]["matrix"]["python"]
    listed = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert tested == tried and len(tested) == 3 and set(tested) <= set(listed)
    assert {listed[0], listed[-1]} <= set(tested)
