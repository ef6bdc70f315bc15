"""Whole tables of a page, between `<!-- NAME:begin -->` and `<!-- NAME:end -->`, by name in tables.TABLES."""

import itertools
import re
import textwrap

from figures.stored import NoFigure
from figures.tables import TABLES

BLOCK = re.compile(r"^( *)<!-- ([\w-]+):begin -->\n(.*?)^ *<!-- \2:end -->", re.S | re.M)


def rewritten(text: str) -> str:
    """The page with each table that is named in TABLES as its files have it now."""

    def placed(match: re.Match[str]) -> str:
        indent, name, shown = match.groups()
        body = f"{_made(name, indent)}\n" if name in TABLES else shown
        return f"{indent}<!-- {name}:begin -->\n{body}{indent}<!-- {name}:end -->"

    return BLOCK.sub(placed, text)


def wrong(text: str) -> list[tuple[int, str, str]]:
    """Of each table that is not as its files have it, the first line that differs: its number, it, the right one."""
    found = []
    for match in BLOCK.finditer(text):
        indent, name, body = match.groups()
        if name in TABLES:
            shown, right = body.splitlines(), _made(name, indent).splitlines()
            first = text[: match.start(3)].count("\n") + 1
            lines = enumerate(itertools.zip_longest(shown, right, fillvalue=""))
            found += [(first + at, one, other) for at, (one, other) in lines if one != other][:1]
    return found


def _made(name: str, indent: str) -> str:
    """A table. Raises NoFigure where its file lacks a row or a column."""
    try:
        return textwrap.indent(TABLES[name](), indent)
    except (KeyError, AttributeError) as error:
        raise NoFigure(f"the table {name} finds no {error}") from error
