"""Where each default comes from: a claim on a paper names the place, one on an authors' code the file or function."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PLACE = re.compile(
    r"section \d|Tables? \d|Eq\. ?\d|Figures? \d|Algorithm \d|Appendix [A-Z]|Theorem \d|\b[A-H]\.\d|abstract"
)
NAMED = re.compile(r"\w\.(py|sh|json|yaml|rs|cc|md|cpp)\b|\w_\w|--\w|\b[A-Z]\w+\.\w|[A-Z][a-z]+[A-Z]\w+|\w+/\w+")


def sources() -> list[tuple[str, str]]:
    """(file: setting, source) of all methods and recipes of both packages."""
    found = []
    for folder in ("suites/methods", "suites/training", "extras/specbench_extras"):
        for file in sorted((ROOT / folder).rglob("*.yaml")):
            settings = yaml.safe_load(file.read_text()).get("settings", {})
            found += [(f"{file.relative_to(ROOT)}: {name}", one["source"]) for name, one in settings.items()]
    return found


def unplaced(source: str) -> bool:
    """True if a part of a source says that a paper or code has the value, and not where."""
    parts = [part.strip() for part in source.split("; ")]
    paper = any(re.match(r"papers?\b", part) and not PLACE.search(part) for part in parts)
    code = any(part.startswith("official code") and not NAMED.search(part) for part in parts)
    return paper or code


@pytest.mark.parametrize("source", ["paper", "paper: six", "paper (12)", "official code", "official code: four"])
def test_a_source_without_a_place_is_found(source):
    assert unplaced(source) and unplaced(f"our inference; {source}")


def test_each_default_says_where_its_value_is():
    every = sources()
    assert len(every) > 900
    assert [place for place, source in every if unplaced(source)] == []
