"""What the pages promise, from promises.yaml: the rows of promises.md, for hooks.py.

A row has the promise in a sentence, words of the page that make it (`says`), the check that holds it, a distinctive
piece of the seeded defect that the check found, which is a line of tests/mutants/list.txt, and the make target that
runs the check.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "pages"
LIST = ROOT / "tests" / "mutants" / "list.txt"
Row = dict[str, Any]


def read() -> dict[str, Any]:
    """The three parts: `seeded` rows by page; `unseeded` ones, with a reason; and what is held by `reading`."""
    data: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "promises.yaml").read_text())
    return data


def file_of(page: str) -> Path:
    """README.md and the extras' pages are named from the root, all others within docs/pages."""
    return ROOT / page if page == "README.md" or page.startswith("extras/") else PAGES / page


def pieces(row: Row) -> list[str]:
    """Of each of a row's defects the text by which it is found in the list."""
    return [row["defect"]] if isinstance(row["defect"], str) else row["defect"]


def numbers(row: Row) -> list[int]:
    """The lines of the list, from 1, that are a row's defects. Raises ValueError unless each is one line."""
    lines = LIST.read_text().splitlines()
    found = [[number for number, line in enumerate(lines, 1) if piece in line] for piece in pieces(row)]
    if wrong := [piece for piece, where in zip(pieces(row), found, strict=True) if len(where) != 1]:
        raise ValueError(f"{wrong[0]!r} is not in one line of {LIST.name}")
    return [where[0] for where in found]


def linked(page: str) -> str:
    """A page by its title, as a link where the site has it; the extras' pages are parts of others."""
    title = re.search(r"^#+ (.+)$", file_of(page).read_text(), re.M)
    assert title, page
    shown = page
    if page.startswith("extras/"):
        mark = f"<!-- page: {page} -->"
        shown = next(path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md") if mark in path.read_text())
    return "README" if page == "README.md" else f"[{title[1]}]({shown})"


def seeded() -> Iterator[list[str]]:
    """Cells: promise, page, check, lines of the list, make target."""
    for page, rows in read()["seeded"].items():
        for row in rows:
            lines = ", ".join(map(str, numbers(row)))
            yield [row["promise"], linked(page), f"`{row['check']}`", lines, f"`{row['target']}`"]


def unseeded() -> Iterator[list[str]]:
    """Cells: promise, page, check, make target, why no defect is in the list."""
    for row in read()["unseeded"]:
        yield [row["promise"], linked(row["page"]), f"`{row['check']}`", f"`{row['target']}`", row["reason"]]


def by_reading() -> Iterator[list[str]]:
    """Cells: promise, page, why no check holds it."""
    for row in read()["reading"]:
        yield [row["promise"], linked(row["page"]), row["reason"]]
