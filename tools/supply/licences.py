"""`make licences`: a table of every package that is locked and installed here, with its licence; `--csv` for a file.

A licence is what the package's own metadata say: License-Expression, else the classifiers, else the License field. A
package that says nothing is `unknown`; one whose terms ask for something of those who pass it on (GPL, AGPL, LGPL, MPL)
is marked. `run` is needed by every installation, `option` by an extra of this project, `dev` by those who work on it.
"""

import csv
import re
import sys
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from importlib.metadata import Distribution, distributions
from typing import Any

from lock import FOLDER, PROJECT, entries, name_of
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OPTIONS = ("openvino",)
LONGEST = 80  # of a licence's name; some packages give the whole licence as its name
WORDS = {
    "AGPL": "Affero",
    "LGPL": "(Lesser|Library) General",
    "GPL": "(?<!Affero )(?<!Lesser )(?<!Library )General Public",
    "MPL": "Mozilla",
}


@dataclass(frozen=True, order=True)
class Row:
    package: str
    version: str
    licence: str
    copyleft: str  # the kinds that its licence names; empty for none
    needed: str


def rows(installed: Iterable[Distribution], locked: set[str], project: dict[str, Any]) -> list[Row]:
    """A row for each of the distributions that is locked (canonical names), sorted by name.

    `project` is the table of that name in pyproject.toml.
    """
    found = {canonicalize_name(one.name): one for one in installed}
    run = closure(found, project["dependencies"])
    extras = project.get("optional-dependencies", {})
    option = closure(found, [line for extra in OPTIONS for line in extras.get(extra, [])])
    table = []
    for name in sorted(found.keys() & locked):
        licence = licence_of(found[name])
        needed = "run" if name in run else "option" if name in option else "dev"
        table.append(Row(name, found[name].version, licence, copyleft(licence), needed))
    return table


def licence_of(package: Distribution) -> str:
    """What the package says of its licence, on one line; `unknown` if it says nothing."""
    said = package.metadata
    classifiers = [line.split(" :: ") for line in said.get_all("Classifier") or [] if line.startswith("License :: ")]
    named = ", ".join(parts[-1] for parts in classifiers if parts[-1] != "OSI Approved")
    field = next((line.strip(" =") for line in (said.get("License") or "").splitlines() if line.strip(" =")), "")
    licence = said.get("License-Expression") or named or field
    if licence.upper() in ("", "UNKNOWN", "NONE"):
        return "unknown"
    return licence if len(licence) <= LONGEST else licence[: LONGEST - 1] + "…"


def copyleft(licence: str) -> str:
    """The kinds of copyleft licence that a licence's name speaks of, by abbreviation or in words."""
    return " ".join(kind for kind, words in WORDS.items() if re.search(rf"(?<![A-Z]){kind}|(?i:{words})", licence))


def closure(found: dict[str, Distribution], lines: Iterable[str]) -> set[str]:
    """The canonical names of those found that the requirements need on this machine, their own needs with them."""
    wanted = [(Requirement(line), "") for line in lines]
    seen: set[tuple[str, str]] = set()
    while wanted:
        one, of_extra = wanted.pop()
        name = canonicalize_name(one.name)
        if name not in found or (one.marker and not one.marker.evaluate({"extra": of_extra})):
            continue
        for extra in {"", *one.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            wanted += [(Requirement(line), extra) for line in found[name].requires or []]
    return {name for name, _ in seen}


def main(*options: str) -> None:
    locked = {canonicalize_name(name_of(entry)) for file in FOLDER.glob("*.txt") for entry in entries(file)}
    table = rows(distributions(), locked, tomllib.loads(PROJECT.read_text())["project"])
    if "--csv" in options:
        csv.writer(sys.stdout).writerows([tuple(Row.__annotations__), *map(astuple, table)])
        return
    shown = Table(*Row.__annotations__, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in shown.columns:
        column.no_wrap = column.header != "licence"
    for row in table:
        marked = "yellow" if row.copyleft or row.licence == "unknown" else ""
        shown.add_row(*(Text(cell, style=marked) for cell in astuple(row)))
    console = Console()
    console.print(shown)
    missing = sorted(locked - {row.package for row in table})
    unknown = [row.package for row in table if row.licence == "unknown"]
    marked = [row.package for row in table if row.copyleft]
    for what, names in (("Copyleft", marked), ("Unknown", unknown), ("Locked, but not installed here", missing)):
        console.print(f"{what}: {', '.join(names) or 'none'}", highlight=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
