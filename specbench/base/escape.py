"""Escapes for Markdown, LaTeX and CSV: texts of models and data, and names from files, must not act as markup there.

The terminal has `console.plain`, the HTML page jinja2's autoescape, and JSON needs nothing.
"""

import re
from typing import Any

import pandas as pd

from specbench.base.console import plain

# Everything that Markdown, with GitHub's additions, could take for markup. An underscore within a word, a bracket that
# no link follows and a < before a number are no markup: csd[gamma=4] and pocket_gsm8k stay as they are.
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
FORMULA = "=+-@\t\r＝＋－＠"  # each of them begins a formula in a spreadsheet


def markdown_text(text: str) -> str:
    """One line of Markdown that renders as the text: no links, images, HTML or mathematics come from it."""

    def escaped(match: re.Match[str]) -> str:
        return {"<": "&lt;", "&": "&amp;"}.get(match.group(), f"\\{match.group()}")

    return _MARKDOWN.sub(escaped, plain(text))


def latex_text(text: str) -> str:
    """LaTeX that typesets the text: no commands come from it. A cell that begins with [ or * is no row's argument."""
    escaped = plain(text).translate(_TO_LATEX)
    return "{}" + escaped if escaped[:1] in ("[", "*") else escaped


def cell(value: Any) -> Any:
    """A value as a cell of CSV; a text that a spreadsheet would take for a formula gets a ' in front.

    Numbers stay as they are, also as texts (-3.5, +1e3); so do newlines, which CSV quotes.
    """
    if not isinstance(value, str):
        return value
    is_formula = value != "" and value[0] in FORMULA and not _is_number(value)
    return "'" * is_formula + plain(value, "\n")


def csv_text(table: pd.DataFrame) -> str:
    """A table as CSV, with every text made a `cell`."""
    cells = table.copy()
    for place, dtype in enumerate(table.dtypes):
        if not pd.api.types.is_numeric_dtype(dtype):
            cells.isetitem(place, table.iloc[:, place].astype(object).map(cell, na_action="ignore"))
    return cells.set_axis([cell(name) for name in table.columns], axis=1).to_csv(index=False)


def _is_number(text: str) -> bool:
    try:
        float(text.removesuffix(" %"))
    except ValueError:
        return False
    return text.isascii() and text.strip() == text
