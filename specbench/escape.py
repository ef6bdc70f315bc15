"""Texts of models and data, and names from files, in Markdown, LaTeX and CSV: read as they are, and active nowhere.

The terminal has `console.plain`, the HTML page jinja2's autoescape, and JSON needs nothing.
"""

import re
from typing import Any

import pandas as pd

from specbench.console import plain

# What Markdown, with GitHub's additions, could take for markup. An underscore within a word, a bracket without a link
# behind it and a < before a number are none; names such as csd[gamma=4] and pocket_gsm8k stay as they are.
_MARKDOWN = re.compile(
    r"[\\`*|$~]"
    r"|<(?=[A-Za-z/!?])"
    r"|&(?=#?\w+;)"
    r"|\](?=[(\[:])"
    r"|!(?=\[)"
    r"|(?<![^\W_])_|_(?![^\W_])"
    r"|(?<=:)/(?=/)"
    r"|(?<=www)\.",
    re.IGNORECASE,
)
_LATEX = {
    "\\": r"\textbackslash ",
    "~": r"\textasciitilde ",
    "^": r"\textasciicircum ",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}
_SIGNS = {"±": r"$\pm$", "α": r"$\alpha$", "τ": r"$\tau$", "Δ": r"$\Delta$", "γ": r"$\gamma$", "λ": r"$\lambda$"}
_SIGNS |= {"μ": r"$\mu$", "−": "$-$", "≥": r"$\ge$", "≤": r"$\le$", "×": r"$\times$", "→": r"$\to$"}
_TO_LATEX = str.maketrans(_LATEX | _SIGNS)
FORMULA = "=+-@\t\r＝＋－＠"  # what a spreadsheet takes for the beginning of a formula


def markdown_text(text: str) -> str:
    """A text as one line of Markdown that renders as itself: no links, images, HTML or mathematics of its own."""

    def escaped(found: re.Match[str]) -> str:
        return {"<": "&lt;", "&": "&amp;"}.get(found.group(), f"\\{found.group()}")

    return _MARKDOWN.sub(escaped, plain(text))


def latex_text(text: str) -> str:
    """A text as LaTeX that typesets it: no commands of its own. As a cell it cannot be a row's optional argument."""
    found = plain(text).translate(_TO_LATEX)
    return "{}" + found if found[:1] in ("[", "*") else found


def cell(value: Any) -> Any:
    """A value as a cell of CSV. Texts that a spreadsheet would take for a formula get a ' in front.

    Numbers stay as they are, as numbers and as texts (-3.5, +1e3); so do newlines, which CSV has quotes for.
    """
    if not isinstance(value, str):
        return value
    active = value[:1] in FORMULA if value else False
    return "'" * (active and not _is_number(value)) + plain(value, "\n")


def csv_text(table: pd.DataFrame) -> str:
    """A table as CSV, each of its texts as `cell` has it."""
    cells = table.copy()
    for at, kind in enumerate(table.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            cells.isetitem(at, table.iloc[:, at].astype(object).map(cell, na_action="ignore"))
    return cells.set_axis([cell(name) for name in table.columns], axis=1).to_csv(index=False)


def _is_number(text: str) -> bool:
    try:
        float(text.removesuffix(" %"))
    except ValueError:
        return False
    return text.isascii() and text.strip() == text
