"""What the HTML pages have in common: their templates, and tables whose cells keep the figures that they show.

table.js sorts such tables by their headings, and saves them as CSV.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from specbench.base import files
from specbench.base.console import plain
from specbench.config import UserError
from specbench.report.columns import Column

HERE = Path(__file__).parent
UNKNOWN = "-"


def source(name: str) -> str:
    """A script or a style sheet of this folder."""
    return (HERE / name).read_text(encoding="utf-8")


def write(path: Path, template: Path, **values: Any) -> None:
    """Write a page; its template may import those of this folder. Raises UserError if the file cannot be written."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, HERE]),
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template(template.name).render(**values)
    try:
        files.write_text(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); choose another file") from None


def _visible(value: Any) -> Any:
    """What a template prints: texts with control characters made visible; the page's own parts are not `str`."""
    return plain(value, "\n") if type(value) is str else value


def heads(columns: Mapping[str, Column], meanings: Mapping[str, str], rows: pd.DataFrame) -> list[dict[str, str]]:
    """The headings of columns of figures: text, meaning, and the names of the figures that a cell is made from."""
    return [
        {"text": column.heading, "meaning": meanings.get(name, ""), "names": " ".join(_figures(column, rows))}
        for name, column in columns.items()
    ]


def cells(columns: Sequence[Column], row: "pd.Series[Any]", rows: pd.DataFrame) -> list[dict[str, str]]:
    """The cells of a row: text, the `value` that a column is sorted by, and all figures, `-` for unknown ones."""
    made = []
    for column in columns:
        figures = [_figure(row[name]) for name in _figures(column, rows)]
        value = "" if figures[0] == UNKNOWN else figures[0]
        made.append({"text": column.text(row), "value": value, "figures": " ".join(figures)})
    return made


def _figures(column: Column, rows: pd.DataFrame) -> list[str]:
    """What a column is made from, texts left out; its first part in any case."""
    return [name for name in column.raw if name == column.raw[0] or pd.api.types.is_numeric_dtype(rows[name])]


def _figure(value: object) -> str:
    return repr(float(value)) if isinstance(value, float | int) and math.isfinite(value) else UNKNOWN
