"""What docs/promises.yaml says is so: pages promise it, its checks are there, and their defects are in the list."""

import ast
import functools
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("promises", ROOT / "docs" / "promises.py")
promises = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(promises)

DATA = promises.read()
SEEDED = [row | {"page": page} for page, rows in DATA["seeded"].items() for row in rows]
CHECKED = [*SEEDED, *DATA["unseeded"]]
LINES = promises.LIST.read_text().splitlines()
RECIPES = dict(re.findall(r"(?m)^([a-z-]+):.*\n((?:\t.*\n|.*\\\n)+)", (ROOT / "Makefile").read_text()))
# Pages of methods without a promise of their own.
WITHOUT = {"methods/index.md": "a list", "methods/related.md": "of other systems"}


@functools.cache
def marks_of(file: str) -> dict[str, bool]:
    """The tests of a file; true of those that are marked long, by themselves or with the whole file."""
    tree = ast.parse((ROOT / file).read_text())
    marks = [node for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    every = any("mark.long" in ast.unparse(node) for node in marks)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {one.name: every or any("mark.long" in ast.unparse(d) for d in one.decorator_list) for one in functions}


def test_the_pages_say_so():
    texts = {page: " ".join(promises.file_of(page).read_text().split()) for page in {row["page"] for row in CHECKED}}
    texts |= {row["page"]: " ".join(promises.file_of(row["page"]).read_text().split()) for row in DATA["reading"]}
    rows = [*CHECKED, *DATA["reading"]]
    assert [row["promise"] for row in rows if row["says"] not in texts[row["page"]]] == []
    assert len({row["promise"] for row in rows}) == len(rows) > 80


def test_every_page_of_a_method_is_among_them():
    pages = {path.relative_to(promises.PAGES).as_posix() for path in (promises.PAGES / "methods").glob("*.md")}
    pages |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "extras").rglob("page.md")}
    assert pages - DATA["seeded"].keys() == WITHOUT.keys()


@pytest.mark.parametrize("row", CHECKED, ids=lambda row: row["check"])
def test_the_check_is_there_and_its_target_runs_it(row):
    file, _, name = row["check"].partition("::")
    if name:  # of pytest
        assert {"test": "not long", "test-long": "long"}[row["target"]] == (
            "long" if marks_of(file)[name] else "not long"
        )
    else:  # a program
        assert file in RECIPES[row["target"]] and (ROOT / file).is_file()


def test_the_targets_of_tests_run_them():
    assert "-m 'not long'" in RECIPES["short-tests"] and "-m long" in RECIPES["test-long"]
    assert "short-tests" in RECIPES["test"]


@pytest.mark.parametrize("row", SEEDED, ids=lambda row: row["check"])
def test_a_defect_is_a_line_that_the_check_is_asked_about(row):
    """Its tests are those of the check's file, or ones that run the program; a choice by name names the check."""
    file, _, name = row["check"].partition("::")
    for number in promises.numbers(row):
        arguments = shlex.split(LINES[number - 1].split(" :: ")[-1])
        files = [one.partition("::")[0] for one in arguments if "/" in one]
        if not name:
            assert any(f"import {Path(file).stem}\n" in (ROOT / one).read_text() for one in files)
            continue
        assert file in files
        chosen = arguments[arguments.index("-k") + 1] if "-k" in arguments else ""
        words = [*re.findall(r"\w{4,}", chosen), *(one.split("::")[1] for one in arguments if "::" in one)]
        assert not words or any(word.partition("[")[0] in name for word in words)


def test_the_pages_table_has_the_lines_numbers():
    rows = list(promises.seeded())
    assert len(rows) == len(SEEDED) and all(re.fullmatch(r"\d+(, \d+)*", row[3]) for row in rows)
    by_check = {row[2]: row for row in rows}
    row = by_check["`tests/test_trust.py::test_nothing_unpickles_evaluates_or_trusts_by_itself`"]
    assert [LINES[int(number) - 1].split(" :: ")[0] for number in row[3].split(", ")] == [
        "specbench/base/pickles.py"
    ] * 3
    assert row[1] == "[Safety](safety.md)"
